"""The operations of a step, in the forked process that runs it. After this code, untrusted code runs."""

from __future__ import annotations

import _signal  # the module signal makes enums, which costs time
import marshal
import mmap
import os
import struct
import sys
from os import closerange, dup2  # global names of this module are looked up faster
from time import monotonic

from agentloop.sandboxes.inside import channel, program, repl
from agentloop.sandboxes.inside import files as transfer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agentloop.sandboxes.inside.isolation.confinement import Confinement

    Files = list[tuple[str, bytes]]

_STARTED = struct.Struct("<d")
_read_time, _write_time = _STARTED.unpack_from, _STARTED.pack_into
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
REPL_CHANNEL = 3
"""Descriptor of the socket of a REPL."""
_BOTH_WAYS = os.O_RDWR | os.O_CLOEXEC
_STANDARD = ("stdin", "stdout", "stderr")
_MAX_FD = 1024
"""A number above every descriptor of a world."""


class Report:
    """A memory page that a step shares with its world. It says when the code started, or why it could not."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def started(self) -> float:
        """Return the start time by `time.monotonic`; 0 before the start."""
        return float(_read_time(self._page)[0])

    def error(self) -> tuple[str, str] | None:
        """Return the stage that failed and the reason; None if the process ended without a report."""
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
        """Prepare for the next step."""
        if self._page[_STARTED.size]:
            self._page[:] = bytes(mmap.PAGESIZE)
        _write_time(self._page, 0, 0.0)

    def close(self) -> None:
        self._page.close()


class Order:
    """One step: its request, the files of the request, its descriptors by name, and its report."""

    def __init__(self, request: dict[str, Any], files: Files, fds: dict[str, int], report: Report) -> None:
        self.request = request
        self.files = files
        self.fds = fds
        self.report = report


def run(confinement: Confinement, request: dict[str, Any], files: Files, fds: list[int], report: Report) -> int:
    """Run a step and return its exit code: confine this process, write the files, do the operation."""
    stage = "isolation"
    try:
        given = dict(zip(request["fds"], fds, strict=True))
        for number, name in enumerate(_STANDARD):
            dup2(given[name] if name in given else os.open("/dev/null", _BOTH_WAYS), number)
        confinement.confine(request["limits"])
        if request["op"] == "execute" and "/" in (path := request["argv"][0]):
            _make_executable(path)
        confinement.refuse_calls()
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
    """Close all descriptors from `first` on and start the clock. Untrusted code comes next."""
    closerange(first, _MAX_FD)
    report.start()
    report.close()


def _python(order: Order) -> int:
    _write_files(order)
    source = order.files[-1][1] if order.files else _content(program.MAIN)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)  # the first process has none
    _start(order.report)
    return program.run(source, order.request["echo"])


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _execute(order: Order) -> int:
    _write_files(order)
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them, and programs would inherit that
        _signal.signal(number, _signal.SIG_DFL)
    argv = order.request["argv"]
    _start(order.report)
    try:
        os.execvpe(argv[0], argv, dict(os.environ))
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def _make_executable(path: str) -> None:
    """Make the output of a linker executable, because the filter of some levels keeps the linker from doing so."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # a missing file is reported by the execution
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
    library = repl.Library()  # before the files are written, which may have the names of modules
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
