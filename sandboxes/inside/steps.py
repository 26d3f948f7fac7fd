"""What a step can do, in the forked process that does it: the last code of ours before that of others."""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentloop.sandboxes.inside import files, program, repl
from agentloop.sandboxes.inside.walls import Walls

_STARTED = struct.Struct("<d")
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
REPL_CHANNEL = 3
"""Where a REPL finds its socket."""
_MAX_FD = 1024
"""Above all descriptors that a world has."""


class Report:
    """A page that a step and its world share until its code starts: when it started, or why it could not."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def started(self) -> float:
        """By `time.monotonic`; 0 before."""
        (value,) = _STARTED.unpack_from(self._page)
        return float(value)

    @property
    def error(self) -> dict[str, str]:
        text = self._page[_STARTED.size :].rstrip(b"\0")
        return json.loads(text) if text else {}

    def start(self) -> None:
        _STARTED.pack_into(self._page, 0, time.monotonic())

    def fail(self, stage: str, error: BaseException) -> None:
        _STARTED.pack_into(self._page, 0, 0.0)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        name = os.fsdecode(error.filename) if isinstance(error, OSError) and error.filename else ""
        text = json.dumps({"stage": stage, "text": f"{reason[:500]}{name and f': {name[:200]}'}"}).encode()
        self._page[_STARTED.size : _STARTED.size + len(text)] = text

    def close(self) -> None:
        self._page.close()


Entries = list[tuple[str, int]]


@dataclass(slots=True, frozen=True)
class Order:
    """A step to do. `fds`: the packed files, then stdin, stdout and stderr, then what the operation has of its own."""

    request: dict[str, Any]
    fds: list[int]
    entries: Entries
    offset: int
    report: Report

    def write_files(self) -> None:
        files.write(self.fds[0], self.entries, self.offset)


def run(walls: Walls, order: Order) -> int:
    """Do a step: confine this process, write the files that came along, do the operation. The exit code of it."""
    fds = order.fds
    stage = "walls"
    try:
        for number, fd in enumerate(fds[1:4]):
            os.dup2(fd, number)
        walls.confine(order.request["limits"])
        stage = "files"
        return _OPERATIONS[order.request["op"]](order)
    except OSError as error:
        order.report.fail(stage, error)
        return 1


def _start(report: Report, first: int = 3) -> None:
    """The last thing before code of others: nothing of ours is open any more, and the clock runs."""
    os.closerange(first, _MAX_FD)
    report.start()
    report.close()


def _python(order: Order) -> int:
    order.write_files()
    path, size = order.entries[-1]
    assert path == program.MAIN, path
    source = os.pread(order.fds[0], size, order.offset + sum(size for _, size in order.entries[:-1]))
    _start(order.report)
    return program.run(source, order.request["echo"])


def _execute(order: Order) -> int:
    order.write_files()
    os.closerange(3, _MAX_FD)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and programs inherit that
        signal.signal(number, signal.SIG_DFL)
    argv = order.request["argv"]
    if "/" in argv[0]:  # what a linker has written; it may not have been allowed to change modes
        _make_executable(argv[0])
    order.report.start()
    try:
        os.execvpe(argv[0], argv, dict(os.environ))
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def _make_executable(path: str) -> None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # it is not there, and that is what the code will be told
    try:
        os.fchmod(file, 0o755)
    except OSError:
        return
    finally:
        os.close(file)


def _write(order: Order) -> int:
    order.write_files()
    order.report.start()
    return 0


def _read(order: Order) -> int:
    order.report.start()
    files.read(order.entries, 1, order.request["limit"])
    return 0


def _repl(order: Order) -> int:
    order.write_files()
    os.dup2(order.fds[4], REPL_CHANNEL, inheritable=False)
    _start(order.report, REPL_CHANNEL + 1)
    return repl.serve(REPL_CHANNEL)


_OPERATIONS: dict[str, Callable[[Order], int]] = {
    "python": _python,
    "execute": _execute,
    "write": _write,
    "read": _read,
    "repl": _repl,
}
