"""What a step can do, in the forked process that does it: the last code of ours before that of others."""

from __future__ import annotations

import _signal  # of which `signal` makes enums, at a price
import marshal
import mmap
import os
import struct
import sys
from os import closerange, dup2  # names of a module's own are found without a search
from time import monotonic

from agentloop.sandboxes.inside import channel, program, repl
from agentloop.sandboxes.inside import files as transfer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agentloop.sandboxes.inside.isolation.walls import Walls

    Files = list[tuple[str, bytes]]

_STARTED = struct.Struct("<d")
_read_time, _write_time = _STARTED.unpack_from, _STARTED.pack_into
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
REPL_CHANNEL = 3
"""Where a REPL finds its socket."""
_BOTH_WAYS = os.O_RDWR | os.O_CLOEXEC
_STANDARD = ("stdin", "stdout", "stderr")
_MAX_FD = 1024
"""Above all descriptors that a world has."""


class Report:
    """A page that a step and its world share until its code starts: when it started, or why it could not."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def started(self) -> float:
        """By `time.monotonic`; 0 before."""
        return float(_read_time(self._page)[0])

    def error(self) -> tuple[str, str] | None:
        """The stage at which it failed, and why; None where the process ended without a word."""
        return marshal.loads(self._page[_STARTED.size :]) if self._page[_STARTED.size] else None

    def start(self) -> None:
        _write_time(self._page, 0, monotonic())

    def fail(self, stage: str, error: BaseException) -> None:
        _write_time(self._page, 0, 0.0)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        name = os.fsdecode(error.filename) if isinstance(error, OSError) and error.filename else ""
        text = marshal.dumps((stage, f"{reason[:500]}{name and f': {name[:200]}'}"))
        self._page[_STARTED.size : _STARTED.size + len(text)] = text

    def clear(self) -> None:
        """For the next step."""
        if self._page[_STARTED.size]:
            self._page[:] = bytes(mmap.PAGESIZE)
        _write_time(self._page, 0, 0.0)

    def close(self) -> None:
        self._page.close()


class Order:
    """A step to do: the request, the files that came in it, its descriptors by name, and where to say that it has
    started."""

    def __init__(self, request: dict[str, Any], files: Files, fds: dict[str, int], report: Report) -> None:
        self.request = request
        self.files = files
        self.fds = fds
        self.report = report


def run(walls: Walls, request: dict[str, Any], files: Files, fds: list[int], report: Report) -> int:
    """Do a step: confine this process, write the files that came along, do the operation. The exit code of it."""
    stage = "walls"
    try:
        given = dict(zip(request["fds"], fds, strict=True))
        for number, name in enumerate(_STANDARD):
            dup2(given[name] if name in given else os.open("/dev/null", _BOTH_WAYS), number)
        walls.confine(request["limits"])
        stage = "files"
        return _OPERATIONS[request["op"]](Order(request, files, given, report))
    except OSError as error:
        report.fail(stage, error)
        return 1


def _write_files(order: Order) -> None:
    if "files" in order.fds:
        transfer.write_packed(order.fds["files"])
    else:
        transfer.write(order.files)


def _start(report: Report, first: int = 3) -> None:
    """The last thing before code of others: nothing of ours is open from `first` on, and the clock runs."""
    closerange(first, _MAX_FD)
    report.start()
    report.close()


def _python(order: Order) -> int:
    _write_files(order)
    source = order.files[-1][1] if order.files else _content(program.MAIN)
    _start(order.report)
    return program.run(source, order.request["echo"])


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _execute(order: Order) -> int:
    _write_files(order)
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them, and programs inherit that
        _signal.signal(number, _signal.SIG_DFL)
    argv = order.request["argv"]
    if "/" in argv[0]:  # what a linker has written; it may not have been allowed to change modes
        _make_executable(argv[0])
    _start(order.report)
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
    _write_files(order)
    order.report.start()
    return 0


def _read(order: Order) -> int:
    order.report.start()
    entries = channel.unpack(order.fds["files"])[0] if "files" in order.fds else order.files
    transfer.read([path for path, _ in entries], 1, order.request["limit"])
    return 0


def _repl(order: Order) -> int:
    library = repl.Library()  # first: files that come along may have the names of modules
    _write_files(order)
    if order.fds["repl"] != REPL_CHANNEL:
        dup2(order.fds["repl"], REPL_CHANNEL, inheritable=False)
    _start(order.report, REPL_CHANNEL + 1)
    return repl.serve(REPL_CHANNEL, library)


_OPERATIONS: dict[str, Callable[[Order], int]] = {
    "python": _python,
    "execute": _execute,
    "write": _write,
    "read": _read,
    "repl": _repl,
}
