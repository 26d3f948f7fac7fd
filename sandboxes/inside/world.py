"""The first process of a world: start steps on request and report how each ended.

It is single-threaded and never runs untrusted code; the confinement of steps protects it. When its socket closes, it
ends, and everything in the world ends with it.

The cost of an execution is the memory pages that the fork and this process write to. So the path of a step through
this module is short, and avoids exceptions and heavy modules.
"""

from __future__ import annotations

import _signal
import gc
import os
import resource
import select
import sys
from os import close, waitpid  # global names of this module are looked up faster
from time import monotonic

from agentloop.sandboxes.inside import channel, endings, program, steps
from agentloop.sandboxes.inside.isolation.confinement import Confinement, limit_quotas

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

_NEVER = float("inf")
_SETUP_SECONDS = 60.0
_RLIMITS = 16
"""RLIM_NLIMITS of Linux."""
_LOOK_SECONDS = 0.02
"""Seconds between two checks whether a step has started. There is no notification of the start."""


class _Running:
    """A step that has not ended."""

    def __init__(self, request: dict[str, Any], report: steps.Report) -> None:
        self.request = request
        self.report = report
        self.number: int = request["id"]
        self.seconds: float = _NEVER if request["timeout"] is None else request["timeout"]
        self.forked = monotonic()
        self.pidfd = -1
        self.killed = False

    def due(self) -> float:
        """Return the `time.monotonic` at which to end the step. The clock of the code starts with the code."""
        if self.killed:
            return _NEVER
        if started := self.report.started():
            return started + self.seconds
        return self.forked + _SETUP_SECONDS

    def look(self, now: float) -> float:
        """Return when to check `due` again."""
        if self.killed or self.report.started():
            return self.due()
        return max(self.forked + min(self.seconds, _SETUP_SECONDS), now + _LOOK_SECONDS)


class World:
    """Serves the requests of one socket."""

    def __init__(self, control: socket, confinement: Confinement) -> None:
        self._control = control
        self._confinement = confinement
        self._inbox = channel.Inbox()
        self._own_data = 0
        self._settings = _settings()
        self._running: dict[int, _Running] = {}  # by pid
        self._reports: list[steps.Report] = []  # of no step
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)

    def serve(self) -> None:
        """Serve requests until the other side closes the socket. Raises `OSError` if the world cannot be cleaned."""
        os.chdir("/")
        limit_quotas()
        self._renew()
        program.prepare(self._confinement.directory)
        gc.collect()
        gc.freeze()
        gc.disable()
        with open("/proc/self/statm") as file:  # the warm interpreter's memory does not count against the code
            self._own_data = int(file.read().split()[5]) * resource.getpagesize()
        channel.say(self._control, b'{"ready": true}')
        control = self._control.fileno()
        try:
            while True:
                ready = self._poll.poll(self._patience())
                self._reap()
                for fd, _ in ready:
                    if fd == control:
                        self._request(*self._inbox.take(self._control))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._sweep()
        except OSError as error:  # only the code can cause this in a world that was ready
            channel.say(
                self._control, b'{"broken": "%s"}' % str(error).encode(errors="backslashreplace").hex().encode()
            )
            raise

    def _patience(self) -> float | None:
        """End steps that have timed out; return the milliseconds until the next check."""
        nearest = _NEVER
        now = monotonic()
        for pid, step in self._running.items():
            if step.due() <= now:
                step.killed = True
                self._end(pid, step)
            look = step.look(now)
            if look < nearest:
                nearest = look
        return None if nearest == _NEVER else max(0.0, nearest - now) * 1000 + 1

    def _request(self, request: dict[str, Any], fds: list[int]) -> None:
        match request["op"]:
            case "kill":
                for pid, step in self._running.items():
                    if step.number == request["id"]:
                        self._end(pid, step)
            case "interrupt":
                for pid, step in self._running.items():
                    if step.number == request["id"]:
                        os.kill(pid, _signal.SIGINT)
            case "clean":
                self._sweep()
                self._clean()
            case "which":
                names = enumerate(request["names"])
                found = [index for index, name in names if _is_program(name) or _is_module(name)]
                channel.say(self._control, b'{"id": %d, "found": %a}' % (request["id"], found))
            case _:
                self._start(request, fds)

    def _start(self, request: dict[str, Any], fds: list[int]) -> None:
        if "data" in request["limits"]:
            request["limits"]["data"] += self._own_data
        report = self._reports.pop() if self._reports else steps.Report()
        step = _Running(request, report)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                endings.forget()
                for spare in self._reports:
                    spare.close()
                status = steps.run(self._confinement, request, self._inbox.body(), fds, report)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(status)
        self._inbox.wipe()
        for fd in fds:
            close(fd)
        step.pidfd = endings.watch(pid)
        self._poll.register(step.pidfd, select.POLLIN)
        self._running[pid] = step

    def _end(self, pid: int, step: _Running) -> None:
        """End a step. It is not reaped yet, so no other process has its pid."""
        if step.request["alone"]:  # all at once, or its children would see it die
            self._confinement.kill()
        else:
            os.kill(pid, _signal.SIGKILL)

    def _reap(self) -> None:
        """Reap all processes that have ended: steps, and orphans of steps."""
        while self._running:
            pid, status = waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if step := self._running.pop(pid, None):
                self._poll.unregister(step.pidfd)
                close(step.pidfd)
                self._ended(step, os.waitstatus_to_exitcode(status))

    def _ended(self, step: _Running, code: int) -> None:
        now = monotonic()
        started = step.report.started()
        if step.request["alone"]:
            self._sweep()
        if started:
            facts = (step.number, code if code >= 0 else 128 - code, now - started, step.killed)
            channel.say(self._control, b'{"id": %d, "code": %d, "seconds": %.6f, "timed_out": %d}' % facts)
        else:
            self._failed(step, *(step.report.error() or ("isolation", f"it ended with {code} before the code started")))
        step.report.clear()
        self._reports.append(step.report)
        if step.request["last"]:
            if not step.request["alone"]:
                self._sweep()
            self._clean()

    def _failed(self, step: _Running, stage: str, reason: str) -> None:
        text = reason.encode(errors="backslashreplace").hex()  # importing json would search where the code can write
        channel.say(self._control, f'{{"id": {step.number}, "failed": "{stage}", "reason": "{text}"}}'.encode())

    def _clean(self) -> None:
        assert not self._running, "a step runs after the last one"
        if self._confinement.user is None and _settings() != self._settings:
            raise OSError("the code has changed limits of this process, which later executions would inherit")
        self._renew()
        channel.say(self._control, b'{"clean": true}')

    def _sweep(self) -> None:
        """End every other process of the world; all of them are descendants of this one."""
        try:
            while True:
                if waitpid(-1, os.WNOHANG) == (0, 0):
                    self._confinement.kill()
                    waitpid(-1, 0)
        except ChildProcessError:
            for step in self._running.values():
                self._poll.unregister(step.pidfd)
                close(step.pidfd)
                self._failed(step, "isolation", "its world has ended")
            self._running.clear()

    def _renew(self) -> None:
        """Empty the writable directories and make the working directory in them."""
        directory = self._confinement.directory
        os.chdir("/")
        if self._confinement.renew:
            self._confinement.renew()
        try:
            os.mkdir(directory)
        except FileExistsError:
            os.chdir(directory)
            return
        if self._confinement.user is not None:
            os.chown(directory, self._confinement.user, self._confinement.user)
        os.chdir(directory)


def _settings() -> tuple[Any, ...]:
    """Return the settings of this process that another process of the same user could change."""
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
