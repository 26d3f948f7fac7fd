"""The owner's side of a world: a place with walls in which untrusted steps run. Nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.cgroups import Cgroup
from agentloop.sandboxes.inside import channel

_GRACE = 10.0
"""Seconds after which a world that should have ended a step is ended itself."""
_BYTES_PER_SECOND = 10 << 20
"""How fast files are written at the least."""


@dataclass(slots=True, frozen=True)
class StepEnd:
    """How a step ended."""

    code: int
    """128 + N where signal N ended it."""
    seconds: float
    """From the start of the code to its end."""
    timed_out: bool


class FirstProcess(Protocol):
    """The process with which everything in a world ends."""

    ended: asyncio.Future[None]
    """Resolves when it and all others are dead."""

    def kill(self) -> None:
        """Does nothing where it is dead already."""


class PidFd:
    """A process by its descriptor, which is closed when it has ended."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(fd, self._end)

    def kill(self) -> None:
        """Does nothing where it has ended."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)
            if self._loop.is_closed():
                os.close(self._fd)

    def _end(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self.ended.set_result(None)


class World:
    """A world, for the event loop that made it. `gone` is called once when it is over, whoever ended it."""

    def __init__(self, control: socket.socket, process: FirstProcess, cgroup: Cgroup | None = None) -> None:
        control.setblocking(False)
        self.cgroup = cgroup
        self.alive = True
        self.gone: Callable[[], None] | None = None
        self._control = control
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._cleaned: asyncio.Future[None] | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(control, self._read)

    async def ready(self, seconds: float) -> None:
        """Raises `SandboxError` where it does not come up."""
        try:
            async with asyncio.timeout(seconds):
                await self._ready
        except TimeoutError as error:
            raise SandboxError(f"A sandbox was not set up within {seconds:g} s.") from error
        finally:
            if not self._ready.done() or self._ready.exception() is not None:
                self.destroy()

    def start(
        self,
        operation: str,
        fds: Sequence[int],
        *,
        timeout: float | None,
        limits: Mapping[str, int],
        alone: bool = True,
        last: bool = False,
        size: int = 0,
        **options: Any,
    ) -> Step:
        """Start a step; `fds` are closed by the caller.

        `alone`: everything else in the world dies with it. `last`: the world is cleaned when it has ended. `size`:
        bytes of files that are written first. Raises `SandboxError`.
        """
        number = next(self._numbers)
        request = {"op": operation, "id": number, "timeout": timeout, "limits": dict(limits), "alone": alone, **options}
        if last:
            request["last"] = True
            self._cleaned = self._loop.create_future()
        future = self._send(number, request, fds)
        patience = None if timeout is None else timeout + _GRACE + size / _BYTES_PER_SECOND
        return Step(self, number, future, patience)

    def _send(self, number: int, request: dict[str, Any], fds: Sequence[int] = ()) -> asyncio.Future[dict[str, Any]]:
        if not self.alive:
            raise SandboxError("The sandbox died.")
        try:
            channel.send(self._control, request, fds)
        except OSError as error:
            self.destroy()
            raise SandboxError(f"The sandbox takes no request: {error}.") from error
        future = self._waiting[number] = self._loop.create_future()
        return future

    async def find(self, names: Sequence[str]) -> set[str]:
        """Those that are programs on the PATH in there, or modules that Python finds."""
        number = next(self._numbers)
        answer = await self._send(number, {"op": "which", "id": number, "names": list(names)})
        return set(answer["found"])

    def tell(self, operation: str, number: int) -> None:
        """Kill or interrupt a step; nothing happens where it has ended already."""
        if self.alive:
            try:
                channel.send(self._control, {"op": operation, "id": number})
            except OSError:
                self.destroy()

    async def cleaned(self) -> None:
        """Wait until a world whose last step has ended is as new, or dead."""
        if self.alive and self._cleaned is None:
            self._cleaned = self._loop.create_future()
            self.tell("clean", 0)
        if self._cleaned is not None:
            _, waiting = await asyncio.wait([self._cleaned], timeout=_GRACE)
            if waiting:
                self.destroy()
        self._cleaned = None

    async def dead(self) -> None:
        """End it and wait until nothing of it is left."""
        self.destroy()
        await asyncio.wait([self._process.ended], timeout=_GRACE)

    def destroy(self) -> None:
        """End it with everything in it. Does nothing the second time."""
        if not self.alive:
            return
        self.alive = False
        if not self._loop.is_closed():
            self._loop.remove_reader(self._control)
        self._control.close()
        self._process.kill()
        waiting: list[asyncio.Future[Any]] = [*self._waiting.values(), self._ready]
        for future in waiting:
            if not future.done() and not self._loop.is_closed():
                future.set_exception(SandboxError("The sandbox died."))
                future.exception()  # seen: nobody may be waiting
        self._waiting.clear()
        if self._cleaned is not None and not self._cleaned.done() and not self._loop.is_closed():
            self._cleaned.set_result(None)
        if self.gone is not None:
            self.gone()

    def _read(self) -> None:
        try:
            while True:
                self._answer(channel.receive(self._control)[0])
        except BlockingIOError:
            return
        except (EOFError, OSError, ValueError):
            self.destroy()

    def _answer(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready.set_result(None)
        elif "clean" in message:
            if self._cleaned is not None and not self._cleaned.done():
                self._cleaned.set_result(None)
        elif (future := self._waiting.pop(message["id"], None)) is not None and not future.done():
            future.set_result(message)


class Step:
    """A step that runs in a world."""

    def __init__(
        self, world: World, number: int, answer: asyncio.Future[dict[str, Any]], patience: float | None
    ) -> None:
        self._world = world
        self._number = number
        self.answer = answer
        if patience is not None:
            hammer = asyncio.get_running_loop().call_later(patience, world.destroy)
            answer.add_done_callback(lambda _: hammer.cancel())

    def kill(self) -> None:
        self._world.tell("kill", self._number)

    def interrupt(self) -> None:
        self._world.tell("interrupt", self._number)

    async def end(self) -> StepEnd:
        """Wait for it. Raises `SandboxError`, and `UserError` where the files that came along cannot be written."""
        answer = await asyncio.shield(self.answer)
        if failure := answer.get("failed"):
            if failure["stage"] == "files":
                raise UserError(f"The files cannot be written in the sandbox: {failure['text']}.")
            raise SandboxError(f"The sandbox could not be closed off: {failure['text']}.")
        return StepEnd(answer["code"], answer["seconds"], answer["timed_out"])
