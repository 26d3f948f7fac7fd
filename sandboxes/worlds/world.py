"""The owner's side of a world: a place with walls in which untrusted steps run. Nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.inside import channel
from agentloop.sandboxes.worlds.cgroups import Cgroup
from agentloop.sandboxes.worlds.streams import memory_file

_GRACE = 10.0
"""Seconds after which a world that should have ended a step is ended itself."""
_BYTES_PER_SECOND = 10 << 20
"""How fast files are written at the least."""
_SMALL = channel.MAX_MESSAGE // 2
_BYTES_PER_FILE = 16
"""Of a message, besides its path and its content."""


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
        self._is_clean = True
        self._cleans = False
        """It will clean itself."""
        self._whenever: Callable[[], None] | None = None
        self._hammer: asyncio.TimerHandle | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(control, self._read)

    async def ready(self, seconds: float) -> None:
        """Raises `SandboxError` where it does not come up."""
        try:
            await asyncio.wait([self._ready], timeout=seconds)  # which leaves the future alone when this is cancelled
            if not self._ready.done():
                raise SandboxError(f"A sandbox was not set up within {seconds:g} s.")
            self._ready.result()
        except BaseException:
            self.destroy()
            raise

    def start(
        self,
        operation: str,
        fds: Mapping[str, int],
        *,
        timeout: float | None,
        limits: Mapping[str, int],
        files: Sequence[tuple[str, bytes]] = (),
        alone: bool = True,
        last: bool = False,
        **options: Any,
    ) -> Step:
        """Start a step; `fds` are closed by the caller. It gets an empty stdin where none is among them, and so on.

        `files` are written first. `alone`: everything else in the world dies with it. `last`: the world is cleaned when
        it has ended. Raises `SandboxError`.
        """
        number = next(self._numbers)
        request = {
            "op": operation,
            "id": number,
            "timeout": None if timeout is None else float(timeout),
            "limits": dict(limits),
            "alone": alone,
            "last": last,
            **options,
        }
        self._is_clean, self._cleans = False, last
        with _carried(files) as (small, large):
            request["fds"] = [*fds, *large]
            future = self._send(number, request, small, [*fds.values(), *large.values()])
        patience = None if timeout is None else timeout + _GRACE + _size(files) / _BYTES_PER_SECOND
        return Step(self, number, future, patience)

    def _send(
        self, number: int, request: dict[str, Any], files: Sequence[tuple[str, bytes]] = (), fds: Sequence[int] = ()
    ) -> asyncio.Future[dict[str, Any]]:
        if not self.alive:
            raise SandboxError("The sandbox died.")
        try:
            channel.request(self._control, request, files, fds)
        except OSError as error:
            self.destroy()
            raise SandboxError(f"The sandbox takes no request: {error}.") from error
        future = self._waiting[number] = self._loop.create_future()
        return future

    async def find(self, names: Sequence[str]) -> set[str]:
        """Those that are programs on the PATH in there, or modules that Python finds."""
        number = next(self._numbers)
        answer = await self._send(number, {"op": "which", "id": number, "names": list(names)})
        return {names[index] for index in answer["found"]}

    def tell(self, operation: str, number: int) -> None:
        """Kill or interrupt a step; nothing happens where it has ended already."""
        if self.alive:
            try:
                channel.request(self._control, {"op": operation, "id": number}, None)
            except OSError:
                self.destroy()

    def when_clean(self, callback: Callable[[], None]) -> None:
        """Call it once, now or later: when the last step has ended and the world is as new, or when it is dead."""
        if not self.alive or self._is_clean:
            callback()
            return
        self._whenever = callback
        self._hammer = self._loop.call_later(_GRACE, self.destroy)
        if not self._cleans:
            self.tell("clean", 0)

    def _settled(self) -> None:
        callback, self._whenever = self._whenever, None
        if callback is not None:
            assert self._hammer is not None
            self._hammer.cancel()
            callback()

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
        if self.gone is not None:
            self.gone()
        if not self._loop.is_closed():
            self._settled()

    def _read(self) -> None:
        try:
            while True:
                self._answer(channel.hear(self._control))
        except BlockingIOError:
            return
        except (EOFError, OSError, ValueError, LookupError):
            self.destroy()

    def _answer(self, message: dict[str, Any]) -> None:
        if "clean" in message:
            self._is_clean, self._cleans = True, False
            self._settled()
        elif "ready" in message:
            if not self._ready.done():
                self._ready.set_result(None)
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
        if stage := answer.get("failed"):
            reason = bytes.fromhex(answer["reason"]).decode()
            if stage == "files":
                raise UserError(f"The files cannot be written in the sandbox: {reason}.")
            raise SandboxError(f"The sandbox could not be closed off: {reason}.")
        return StepEnd(answer["code"], answer["seconds"], bool(answer["timed_out"]))


def _size(files: Sequence[tuple[str, bytes]]) -> int:
    return sum(len(content) for _, content in files)


@contextlib.contextmanager
def _carried(files: Sequence[tuple[str, bytes]]) -> Iterator[tuple[list[tuple[str, bytes]], dict[str, int]]]:
    """Files as they go with a request: those that fit in it, or else a descriptor, by its name, of all."""
    if sum(_BYTES_PER_FILE + 4 * len(path) for path, _ in files) + _size(files) <= _SMALL:
        yield list(files), {}
        return
    payload = memory_file(channel.pack(files))
    try:
        yield [], {"files": payload}
    finally:
        os.close(payload)
