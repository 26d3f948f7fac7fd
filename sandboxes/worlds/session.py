"""`WorldSession`: a session, which is a REPL step in its own world."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Literal

from agentloop.errors import SandboxError
from agentloop.sandboxes.inside import channel
from agentloop.sandboxes.interface.sandbox import CellResult, SessionSettings, check_files, check_limits
from agentloop.sandboxes.worlds import cells, runs
from agentloop.sandboxes.worlds.runs import Bounds, given, named
from agentloop.sandboxes.worlds.streams import Drain, memory_file
from agentloop.sandboxes.worlds.world import BrokenWorldError, Step, World

_OPEN_SECONDS = 30.0
_INTERRUPT_SECONDS = 2.0
"""Seconds that a cell may take to end after an interrupt."""
_INTERRUPT_WAITS = 8
"""Number of waits that make up these seconds. A pause of the whole machine uses up one of them, however long it is."""
_WRITE_SECONDS = 60.0
_SMALL = channel.MAX_MESSAGE // 2
"""Maximum bytes of code that is sent in a message. Longer code is sent in a memory file."""
_FRAMES = 1 << 20
"""Bytes for the headers of displays and for the error."""

_Event = Literal["ended", "died", "timeout", "stopped"]


class WorldSession:
    """A session in `world`, which it owns. Made by `PooledSandbox.session`."""

    def __init__(
        self, world: World, settings: SessionSettings, bounds: Bounds, closed: Callable[[WorldSession], None]
    ) -> None:
        self.id = uuid.uuid4().hex
        self._world = world
        self._settings = settings
        self._bounds = bounds
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._step: Step | None = None
        self._event: asyncio.Future[_Event] | None = None
        """Future of the event that ends the running cell."""
        self._over = ""
        self._broken: BrokenWorldError | None = None
        """Reason why the code kept a file from being written or read. The next cell reports it."""
        self._idle: asyncio.TimerHandle | None = None
        world.gone = self._chain(world.gone)

    async def open(self) -> None:
        """Start the REPL. Raises `SandboxError`, and `UserError` if the files cannot be written."""
        runs.limit_memory(self._world, self._settings.memory_mb)
        files = named(self._settings.files)
        with self._theirs:
            self._step = self._world.start(
                "repl",
                {"repl": self._theirs.fileno()},
                timeout=None,
                limits=self._bounds.limits(self._world, self._settings.memory_mb, None, python=True),
                files=files,
            )
        self._event = self._loop.create_future()
        self._step.answer.add_done_callback(lambda _: self._notify("died"))
        self._loop.add_reader(self._ours, self._read)
        timer = self._loop.call_later(_OPEN_SECONDS, self._notify, "timeout")
        event = await self._event
        timer.cancel()
        if event == "died":
            await self._step.end()
        if event != "ended":
            raise SandboxError("The Python of the session did not start.")
        self._event = None
        self._start_idle_timer()

    async def run(self, code: str, *, max_seconds: float = 10.0) -> CellResult:
        check_limits(_MaxSeconds(max_seconds), "max_seconds")
        stop = self._loop.create_future()
        cell = asyncio.ensure_future(self._run(code, max_seconds, stop))
        try:
            return await asyncio.shield(cell)
        except asyncio.CancelledError:
            # The cell is interrupted and the session continues: the next call waits for the end of this cell.
            stop.set_result(None)
            cell.add_done_callback(_seen)
            raise

    async def _run(self, code: str, max_seconds: float, stop: asyncio.Future[None]) -> CellResult:
        async with self._lock:
            if (broken := self._broken or self._world.broken) is not None:
                return await self._report(broken)
            self._check_open()
            if stop.done():
                raise SandboxError("The cell was cancelled.")
            self._stop_idle_timer()
            out, errors = Drain(self._settings.output_bytes), Drain(self._settings.output_bytes)
            shown = Drain(self._settings.display_bytes + _FRAMES)
            with ExitStack() as stack:
                for drain in (out, errors, shown):
                    stack.callback(drain.close)
                start = time.monotonic()
                event, ended = await self._cell(code, max_seconds, stop, (out, errors, shown))
                seconds = time.monotonic() - start
                outputs = [drain.finish() for drain in (out, errors, shown)]
            what = cells.parse(outputs[2])
            result = CellResult(
                stdout=outputs[0].decode(errors="replace"),
                stderr=outputs[1].decode(errors="replace"),
                displays=what.displays,
                error=what.error,
                seconds=seconds,
                timed_out=event == "timeout",
                oom=ended == "oom" or (what.error is not None and what.error.name.endswith("MemoryError")),
                output_truncated=out.truncated or errors.truncated or shown.truncated or what.truncated,
                session_ended=ended,
            )
            if ended:
                await self._finish(f"its Python {_PAST[ended]}")
            else:
                self._start_idle_timer()
            return result

    async def _report(self, broken: BrokenWorldError) -> CellResult:
        """Return the result of a cell of a session that earlier cells have broken."""
        await self._finish("its code has broken its sandbox")
        ended: Literal["oom", "killed"] = "oom" if broken.oom else "killed"
        return CellResult(stdout="", stderr=f"{broken}\n", seconds=0.0, oom=broken.oom, session_ended=ended)

    async def _cell(
        self, code: str, max_seconds: float, stop: asyncio.Future[None], drains: Sequence[Drain]
    ) -> tuple[_Event, Literal["", "exited", "killed", "oom"]]:
        """Run a cell to its end. Return the event that ended it, and the reason if the session ended."""
        assert self._step is not None
        self._event = event = self._loop.create_future()
        if self._step.answer.done():
            self._notify("died")
        source = runs.encode(code)
        is_small = len(source) <= _SMALL
        more = () if is_small else (memory_file([source]),)
        with given(*(drain.writer for drain in drains), *more) as fds:
            limit = self._settings.display_bytes
            message = {"cell": next(self._numbers), "limit": limit, "code": source if is_small else None}
            try:
                channel.send(self._ours, message, fds)
            except OSError:
                self._notify("died")
        timer = self._loop.call_later(max_seconds, self._notify, "timeout")
        # Only for this event: after an interrupt, the cell is over when it has ended, and not when its caller leaves.
        stop.add_done_callback(lambda _: None if event.done() else event.set_result("stopped"))
        what = await event
        timer.cancel()
        if what in ("timeout", "stopped"):
            self._event = after = self._loop.create_future()
            self._step.interrupt()
            for _ in range(_INTERRUPT_WAITS):
                await asyncio.wait([after], timeout=_INTERRUPT_SECONDS / _INTERRUPT_WAITS)
            if not after.done():
                self._step.kill()
                await asyncio.wait([self._step.answer], timeout=_INTERRUPT_SECONDS)
                return what, "killed"
            if after.result() == "died":
                return what, await self._death()
        self._event = None
        return what, await self._death() if what == "died" else ""

    async def _death(self) -> Literal["exited", "killed", "oom"]:
        assert self._step is not None
        await asyncio.wait([self._step.answer], timeout=_INTERRUPT_SECONDS)
        if self._world.cgroup is not None and self._world.alive and self._world.cgroup.ran_out_of_memory():
            return "oom"
        answer = self._step.answer
        if answer.done() and answer.exception() is None and answer.result()["code"] <= 128:
            return "exited"
        return "killed"

    def _read(self) -> None:
        # The code can send anything on this socket, so messages are not parsed and descriptors not accepted.
        try:
            message = self._ours.recv(1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._loop.remove_reader(self._ours)
            if self._step is not None:  # the code has closed the REPL's socket: the session is lost
                self._loop.call_later(_INTERRUPT_SECONDS / 4, self._step.kill)
            return
        self._notify("ended")

    def _notify(self, event: _Event) -> None:
        if self._event is not None and not self._event.done():
            self._event.set_result(event)

    async def interrupt(self) -> None:
        if self._event is not None and self._step is not None:
            self._step.interrupt()

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        check_files(files)
        async with self._lock:
            if self._is_broken():
                return
            self._check_open()
            self._stop_idle_timer()
            try:
                step = self._world.start(
                    "write",
                    {},
                    timeout=_WRITE_SECONDS,
                    limits=self._bounds.limits(self._world, self._settings.memory_mb, None, python=True),
                    files=named(files),
                    alone=False,
                )
                await step.end()
            except BrokenWorldError as error:
                self._broken = error
            self._start_idle_timer()

    async def read_files(self, paths: Sequence[str], *, limit: int = 64 << 20) -> dict[str, bytes]:
        async with self._lock:
            if self._is_broken():
                return {}
            self._check_open()
            self._stop_idle_timer()
            try:
                files, _ = await runs.fetch(self._world, self._bounds, paths, limit, alone=False)
            except BrokenWorldError as error:
                self._broken, files = error, {}
            self._start_idle_timer()
            return files

    def _is_broken(self) -> bool:
        return self._broken is not None or self._world.broken is not None

    async def close(self) -> None:
        await self._finish("it was closed")

    def _check_open(self) -> None:
        if self._over or not self._world.alive:
            raise SandboxError(f"The session is over: {self._over or 'its sandbox died'}. Open another one.")

    def _stop_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()

    def _start_idle_timer(self) -> None:
        self._idle = self._loop.call_later(self._settings.idle_seconds, self._end_idle)

    def _end_idle(self) -> None:
        self._end(f"nothing ran in it for {self._settings.idle_seconds:g} s")

    async def _finish(self, why: str) -> None:
        self._end(why)
        await self._world.dead()

    def _end(self, why: str) -> None:
        if not self._over:
            self._over = why
            self._stop_idle_timer()
            self._loop.remove_reader(self._ours)
            self._ours.close()
            self._theirs.close()
            self._world.destroy()
            self._closed(self)

    def _chain(self, gone: Callable[[], None] | None) -> Callable[[], None]:
        def both() -> None:
            self._notify("died")
            self._end("its sandbox died")
            if gone is not None:
                gone()

        return both


_PAST = {"exited": "has exited", "killed": "was killed", "oom": "ran out of memory"}


class _MaxSeconds:
    def __init__(self, max_seconds: float) -> None:
        self.max_seconds = max_seconds


def _seen(cell: asyncio.Future[CellResult]) -> None:
    if not cell.cancelled():
        cell.exception()
