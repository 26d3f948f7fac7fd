"""The first process of a world: starts steps as the other side of its socket asks, and says how each ended.

It is single-threaded, never runs code of others, and is protected from it by the walls. When the socket closes it
ends, and with it everything in the world.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from agentloop.sandboxes.inside import channel, endings, program, steps
from agentloop.sandboxes.inside.walls import Walls

_SETUP_SECONDS = 60.0
_FEW = 8
_RLIMITS = 16
"""RLIM_NLIMITS of Linux."""
_LOOK_SECONDS = 0.02
_ORPHAN_SECONDS = 2.0
"""How often to look for what has ended and was nobody's child but ours."""


@dataclass(slots=True)
class _Running:
    request: dict[str, Any]
    report: steps.Report
    forked: float
    pidfd: int
    killed: bool = False

    def deadline(self) -> float:
        """By `time.monotonic`: the clock of the code starts when the code does."""
        if self.killed:
            return float("inf")
        if not (started := self.report.started):
            return self.forked + _SETUP_SECONDS
        seconds = self.request["timeout"]
        return float("inf") if seconds is None else started + float(seconds)

    def look(self, now: float) -> float:
        """When its deadline should be asked for: nothing tells us that the code has started."""
        if self.killed or self.report.started:
            return self.deadline()
        seconds = self.request["timeout"]
        return max(self.forked + (_SETUP_SECONDS if seconds is None else float(seconds)), now + _LOOK_SECONDS)


class World:
    """Serves the requests of one socket."""

    def __init__(self, control: socket.socket, walls: Walls) -> None:
        self._control = control
        self._walls = walls
        self._own_data = 0
        self._settings = _settings()
        self._running: dict[int, _Running] = {}  # by pid
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        """Until the other side closes the socket. Raises `OSError` where the world cannot be made clean."""
        os.chdir("/")
        self._renew()
        program.prepare(self._walls.directory)
        gc.collect()
        gc.freeze()
        gc.disable()
        with open("/proc/self/statm") as file:  # what is warm does not count against the code
            self._own_data = int(file.read().split()[5]) * resource.getpagesize()
        channel.send(self._control, {"ready": True})
        try:
            while True:
                ready = {fd for fd, _ in self._poll.poll(self._patience())}
                self._reap()
                self._expire()
                if self._control.fileno() in ready:
                    self._request(*channel.receive(self._control))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._sweep()

    def _patience(self) -> float | None:
        """Milliseconds until something has to be ended or looked for."""
        now = time.monotonic()
        nearest = min((step.look(now) for step in self._running.values() if not step.killed), default=float("inf"))
        return None if nearest == float("inf") else max(0.0, nearest - now) * 1000 + 1

    def _request(self, request: dict[str, Any], fds: list[int]) -> None:
        match request["op"]:
            case "kill":
                self._kill(request["id"])
            case "interrupt":
                for pid, step in self._running.items():
                    if step.request["id"] == request["id"]:
                        os.kill(pid, signal.SIGINT)
            case "clean":
                self._clean()
            case "which":
                found = [name for name in request["names"] if _is_program(name) or _is_module(name)]
                channel.send(self._control, {"id": request["id"], "found": found})
            case _:
                self._start(request, fds)

    def _start(self, request: dict[str, Any], fds: list[int]) -> None:
        if "data" in request["limits"]:
            request["limits"]["data"] += self._own_data
        entries, offset = channel.unpack(fds[0])
        order = steps.Order(request, fds, entries, offset, steps.Report())
        forked = time.monotonic()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                endings.forget()
                status = steps.run(self._walls, order)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(status)
        for fd in fds:
            os.close(fd)
        pidfd = endings.watch(pid)
        self._poll.register(pidfd, select.POLLIN)
        self._running[pid] = _Running(request, order.report, forked, pidfd)

    def _expire(self) -> None:
        now = time.monotonic()
        for pid, step in self._running.items():
            if not step.killed and step.deadline() <= now:
                step.killed = True
                self._end(pid, step)

    def _kill(self, number: int) -> None:
        for pid, step in self._running.items():
            if step.request["id"] == number:
                self._end(pid, step)

    def _end(self, pid: int, step: _Running) -> None:
        if step.request["alone"]:  # at once: else what it has started would see it die
            self._walls.kill()
            return
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _reap(self) -> None:
        """All that has ended: steps, and what they left behind, which the kernel gives to us."""
        while self._running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if step := self._running.pop(pid, None):
                self._poll.unregister(step.pidfd)
                os.close(step.pidfd)
                self._ended(step, os.waitstatus_to_exitcode(status))

    def _ended(self, step: _Running, code: int) -> None:
        now = time.monotonic()
        started, error = step.report.started, step.report.error
        step.report.close()
        if step.request["alone"]:
            self._sweep()
        answer: dict[str, Any] = {"id": step.request["id"], "code": code if code >= 0 else 128 - code}
        if started:
            answer |= {"seconds": now - started, "timed_out": step.killed}
        else:
            answer |= {"failed": error or {"stage": "walls", "text": f"it ended with {code} before the code started"}}
        channel.send(self._control, answer)
        if step.request.get("last"):
            self._clean()

    def _clean(self) -> None:
        self._sweep()
        assert not self._running, "a step that was to be the last"
        if self._walls.user is None and _settings() != self._settings:
            raise OSError("the code has changed the limits of this process, which every later execution inherits")
        self._renew()
        channel.send(self._control, {"clean": True})

    def _sweep(self) -> None:
        """End every process of the world but this one."""
        try:
            while True:
                self._walls.kill()
                os.waitpid(-1, 0)
        except ChildProcessError:
            return

    def _renew(self) -> None:
        """Empty writable directories, and in them the working directory."""
        os.chdir("/")
        if self._walls.renew:
            _remove_few(self._walls.directory)
            self._walls.renew()
        os.makedirs(self._walls.directory, exist_ok=True)
        if self._walls.user is not None:
            os.chown(self._walls.directory, self._walls.user, self._walls.user)
        os.chdir(self._walls.directory)


def _remove_few(directory: str) -> None:
    """A directory with the few files of most executions: that is several times cheaper than another file system. What
    is in it nobody can change any more, and where something stays it is left to `renew`."""
    try:
        names = os.listdir(directory)
        if len(names) <= _FEW:
            for name in names:
                os.unlink(f"{directory}/{name}")
            os.rmdir(directory)
    except OSError:
        return


def _settings() -> tuple[Any, ...]:
    """What another process of the same user may change in this one. Without root the code is the same user."""
    return (
        [resource.getrlimit(limit) for limit in range(_RLIMITS)],
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getaffinity(0),
        os.sched_getscheduler(0),
    )


def _is_program(name: str) -> bool:
    directories = os.environ["PATH"].split(":")
    return any(os.access(f"{directory}/{name}", os.X_OK) for directory in directories)


def _is_module(name: str) -> bool:
    return any(os.path.exists(f"{directory}/{name}{kind}") for directory in sys.path for kind in ("", ".py"))
