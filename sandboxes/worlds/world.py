"""The owner's side of a world, an isolated process in which untrusted steps run. No call blocks the event loop."""

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
"""Seconds after which a world is killed if it has not ended a step as it should."""
_BYTES_PER_SECOND = 10 << 20
"""Slowest expected rate of writing files, in bytes per second."""
_SMALL = channel.MAX_MESSAGE // 2
_BYTES_PER_FILE = 16
"""Bytes of a message for each file, in addition to its path and content."""


class BrokenWorldError(SandboxError):
    """The code has broken its world. This counts against the code, not against the sandbox."""

    def __init__(self, reason: str, *, oom: bool = False) -> None:
        super().__init__(f"The code has broken its own sandbox: {reason}.")
        self.oom = oom


@dataclass(slots=True, frozen=True)
class StepEnd:
    """The end of a step."""

    code: int
    """Exit status; 128 + N if signal N ended it."""
    seconds: float
    """Seconds from the start of the code to its end."""
    timed_out: bool


class FirstProcess(Protocol):
    """The first process of a world. Everything in the world ends with it."""

    ended: asyncio.Future[None]
    """Future that resolves when this process and all others of the world are dead."""

    def kill(self) -> None:
        """Kill the process. Do nothing if it is dead."""


class PidFd:
    """A process, identified by a descriptor that is closed when the process has ended."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(fd, self._end)

    def kill(self) -> None:
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
    """A world of one event loop. `gone` is called once when the world ends for any reason."""

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
        self.broken: BrokenWorldError | None = None
        """Set if the code has ended this world."""
        self._is_clean = True
        """Whether no code has run since the world was made or cleaned."""
        self._cleans = False
        """Whether the world will clean itself after the last step."""
        self._on_clean: Callable[[], None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(control, self._read)

    async def ready(self, seconds: float) -> None:
        """Wait until the world is set up. Raises `SandboxError` if that fails."""
        try:
            await asyncio.wait([self._ready], timeout=seconds)  # does not cancel the future when this is cancelled
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
        """Start a step. The caller closes `fds`. Standard streams that are not among them are /dev/null.

        `files` are written first. `alone`: whether all other processes of the world die with the step. `last`: whether
        the world is cleaned when the step has ended. Raises `SandboxError`.
        """
        number = next(self._numbers)
        was_clean = self._is_clean
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
        return Step(self, number, future, patience, was_clean)

    def _send(
        self, number: int, request: dict[str, Any], files: Sequence[tuple[str, bytes]] = (), fds: Sequence[int] = ()
    ) -> asyncio.Future[dict[str, Any]]:
        if not self.alive:
            raise self.broken or SandboxError("The sandbox died.")
        try:
            channel.request(self._control, request, files, fds)
        except OSError as error:
            self._end()
            raise self.broken or SandboxError(f"The sandbox accepts no request: {error}.") from error
        future = self._waiting[number] = self._loop.create_future()
        return future

    async def find(self, names: Sequence[str]) -> set[str]:
        """Return the names that are programs on the PATH inside, or modules that Python finds inside."""
        number = next(self._numbers)
        answer = await self._send(number, {"op": "which", "id": number, "names": list(names)})
        return {names[index] for index in answer["found"]}

    def tell(self, operation: str, number: int) -> None:
        """Kill or interrupt a step. Do nothing if it has ended."""
        if self.alive:
            try:
                channel.request(self._control, {"op": operation, "id": number}, None)
            except OSError:
                self._end()

    def when_clean(self, callback: Callable[[], None]) -> None:
        """Call `callback` once: as soon as the world is clean again after its last step, or dead."""
        if not self.alive or self._is_clean:
            callback()
            return
        self._on_clean = callback
        self._deadline = self._loop.call_later(_GRACE, self.destroy)
        if not self._cleans:
            self.tell("clean", 0)

    def _settled(self) -> None:
        callback, self._on_clean = self._on_clean, None
        if callback is not None:
            assert self._deadline is not None
            self._deadline.cancel()
            callback()

    async def dead(self) -> None:
        """End the world and wait until nothing of it is left."""
        self.destroy()
        await asyncio.wait([self._process.ended], timeout=_GRACE)

    def destroy(self) -> None:
        """End the world with everything in it. A second call does nothing."""
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
                future.set_exception(self.broken or SandboxError("The sandbox died."))
                future.exception()  # mark the exception as retrieved, because no caller may be waiting
        self._waiting.clear()
        if self.gone is not None:
            self.gone()
        if not self._loop.is_closed():
            self._settled()

    def _end(self) -> None:
        """End the world after reading its last messages, which may say that it is broken."""
        self._read()
        self.destroy()

    def _read(self) -> None:
        try:
            while True:
                self._answer(channel.hear(self._control))
        except BlockingIOError:
            return
        except ConnectionResetError:
            # The world died with an unread request. Linux reports this once, before the messages in the queue.
            self._read()
        except (EOFError, OSError, ValueError, LookupError):
            if self.cgroup is not None and not self._is_clean and self.cgroup.ran_out_of_memory():
                self.broken = BrokenWorldError("it ran out of memory", oom=True)
            self.destroy()

    def _answer(self, message: dict[str, Any]) -> None:
        if "broken" in message:  # written by the first process, in which no code runs, before it ends
            self.broken = BrokenWorldError(bytes.fromhex(message["broken"]).decode(errors="replace"))
            self.destroy()
        elif "clean" in message:
            self._is_clean, self._cleans = True, False
            self._settled()
        elif "ready" in message:
            if not self._ready.done():
                self._ready.set_result(None)
        elif (future := self._waiting.pop(message["id"], None)) is not None and not future.done():
            future.set_result(message)


class Step:
    """A running step of a world."""

    def __init__(
        self,
        world: World,
        number: int,
        answer: asyncio.Future[dict[str, Any]],
        patience: float | None,
        was_clean: bool,
    ) -> None:
        self._world = world
        self._number = number
        self._was_clean = was_clean
        self.answer = answer
        if patience is not None:
            deadline = asyncio.get_running_loop().call_later(patience, world.destroy)
            answer.add_done_callback(lambda _: deadline.cancel())

    def kill(self) -> None:
        self._world.tell("kill", self._number)

    def interrupt(self) -> None:
        self._world.tell("interrupt", self._number)

    async def end(self) -> StepEnd:
        """Wait for the end of the step.

        Raises `UserError` if the files of the request cannot be written. Raises `SandboxError` if the sandbox failed,
        and `BrokenWorldError` if code that ran earlier in the same world is the reason.
        """
        answer = await asyncio.shield(self.answer)
        if stage := answer.get("failed"):
            reason = bytes.fromhex(answer["reason"]).decode()
            if stage == "files":
                raise UserError(f"The files cannot be written in the sandbox: {reason}.")
            if not self._was_clean:
                raise BrokenWorldError(reason)
            if self._world.cgroup is not None and self._world.cgroup.ran_out_of_memory():
                raise UserError("The files and the interpreter do not fit into memory_mb: raise it.")
            raise SandboxError(f"The sandbox could not be isolated: {reason}.")
        return StepEnd(answer["code"], answer["seconds"], bool(answer["timed_out"]))


def _size(files: Sequence[tuple[str, bytes]]) -> int:
    return sum(len(content) for _, content in files)


@contextlib.contextmanager
def _carried(files: Sequence[tuple[str, bytes]]) -> Iterator[tuple[list[tuple[str, bytes]], dict[str, int]]]:
    """Split files into those in the request and those in a memory file. The request has all or none of them."""
    if sum(_BYTES_PER_FILE + 4 * len(path) for path, _ in files) + _size(files) <= _SMALL:
        yield list(files), {}
        return
    payload = memory_file(channel.pack(files))
    try:
        yield [], {"files": payload}
    finally:
        os.close(payload)
