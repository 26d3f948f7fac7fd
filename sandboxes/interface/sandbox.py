"""The interface of every isolation level: executions and their results, and the `Sandbox` and `Session` protocols."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Literal, Protocol

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface import languages

MIN_MEMORY_MB = 16
"""MiB that the interpreter itself needs at every level."""
MAX_FILES = 10_000
"""Maximum number of files of one execution."""
WRITABLE = ("/tmp", "/mnt")
"""Directories that the code can write to. Each execution and session gets new ones of limited size."""
WORKING_DIRECTORY = "/tmp/work"


_MAX_DEPTH = 200


class SandboxBusyError(SandboxError):
    """No slot became free within the allowed waiting time."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Execution:
    """One program to run. Raises `UserError` if a field is invalid."""

    code: str
    """Source code, written to the main file of its language (`main.py`, `main.sh`, ...) and run there."""
    language: str = "python"
    """One of `languages.NAMES`."""
    stdin: str | bytes | None = None
    """Input; None is an empty, closed stdin."""
    timeout: float = 10.0
    """Wall-clock seconds from the start of the code. Waiting for a slot and setting it up do not count."""
    compile_timeout: float = 10.0
    """Wall-clock seconds for the compiler, in languages that have one."""
    memory_mb: int = 1024
    """MiB for all processes together, files in memory included; for each process if the level has no cgroup."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> content of files to write before the start, relative to the working directory or below `WRITABLE`."""
    fetch_files: Sequence[str] = ()
    """Paths to read after the code has ended, as it sees them, without missing, unreadable and irregular files."""
    output_bytes: int = 1 << 20
    """Bytes to keep of stdout, and of stderr. The rest is read and dropped, so the code never blocks on output."""
    fetch_bytes: int = 64 << 20
    """Bytes to keep of all fetched files together; a file that does not fit is left out."""
    echo: bool = False
    """Whether to print the value of a last line that is an expression, like the interactive Python. Python only."""

    def __post_init__(self) -> None:
        languages.find(self.language)
        check_limits(self, "timeout", "compile_timeout", "memory_mb", "output_bytes", "fetch_bytes")
        check_memory(self.memory_mb)
        check_files(self.files)
        for path in self.fetch_files:
            if not path or not _is_name(path):
                raise UserError(f"fetch_files contains {path!r}, which is not a path: remove it.")


@dataclass(slots=True, frozen=True, kw_only=True)
class ProcessResult:
    """The result of one process. Bytes that are not UTF-8 are replaced by U+FFFD."""

    stdout: str
    stderr: str
    return_code: int | None
    """Exit status; 128 + N if signal N ended the process, as in shells; None if it timed out."""
    seconds: float
    """Wall-clock seconds from the start of the process to its end."""
    timed_out: bool = False
    oom: bool = False
    """Whether the process ran out of memory: the kernel killed it, or an uncaught `MemoryError` ended it."""
    output_truncated: bool = False

    @property
    def signal(self) -> int | None:
        """Return the signal that ended the process. `exit(128 + N)` looks the same."""
        return self.return_code - 128 if self.return_code is not None and 128 < self.return_code <= 192 else None

    @property
    def ok(self) -> bool:
        return self.return_code == 0

    def __str__(self) -> str:
        return "\n".join(f"{item.name}: {getattr(self, item.name)!r}" for item in fields(self))


@dataclass(slots=True, frozen=True, kw_only=True)
class ExecutionResult(ProcessResult):
    """The result of an execution. If the code did not compile, the fields describe the compiler."""

    compilation: ProcessResult | None = None
    """Result of the compiler; None in languages without one."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Fetched files, by the requested path."""
    files_truncated: bool = False
    """Whether a file was left out because of `fetch_bytes`."""
    queue_seconds: float = 0.0
    """Seconds that the execution waited for a slot."""

    @property
    def compiled(self) -> bool:
        return self.compilation is None or self.compilation.ok


@dataclass(slots=True, frozen=True, kw_only=True)
class SessionSettings:
    """The settings of a new session. Raises `UserError` if a field is invalid."""

    memory_mb: int = 1024
    files: Mapping[str, bytes] = field(default_factory=dict)
    idle_seconds: float = 1800.0
    """Seconds without a cell after which the session ends by itself."""
    output_bytes: int = 1 << 20
    """Bytes to keep of stdout, and of stderr, of each cell."""
    display_bytes: int = 8 << 20
    """Bytes to keep of all displays of a cell. An image that does not fit is left out and sets `output_truncated`."""

    def __post_init__(self) -> None:
        check_limits(self, "memory_mb", "idle_seconds", "output_bytes", "display_bytes")
        check_memory(self.memory_mb)
        check_files(self.files)


@dataclass(slots=True, frozen=True, kw_only=True)
class CellError:
    """An exception that a cell did not catch."""

    name: str
    value: str
    traceback: Sequence[str]
    """Lines as the interactive interpreter prints them, without frames of the sandbox."""


@dataclass(slots=True, frozen=True, kw_only=True)
class CellResult:
    """The result of one cell of a session."""

    stdout: str
    stderr: str
    displays: Sequence[Mapping[str, str | bytes]] = ()
    """Displays in order: the value of a last expression, and figures. Each maps a MIME type to text, or to bytes for
    a type that is not text (`image/png`)."""
    error: CellError | None = None
    seconds: float
    timed_out: bool = False
    """Whether the cell was interrupted because it timed out."""
    oom: bool = False
    output_truncated: bool = False
    session_ended: Literal["", "exited", "killed", "oom"] = ""
    """Reason why this cell ended the session (`os._exit`, a signal, no reaction to the interrupt), or empty. The state
    of an ended session is lost."""

    @property
    def ok(self) -> bool:
        return self.error is None and not self.timed_out and not self.session_ended


class Session(Protocol):
    """A stateful Python. Its cells share variables, files and processes, but only with each other."""

    id: str

    async def run(self, code: str, *, max_seconds: float = 10.0) -> CellResult:
        """Run a cell and show the value of its last line if that is an expression. Cells run one at a time.

        After `max_seconds`, and if the caller is cancelled, the cell is interrupted as by Ctrl-C. If that has no
        effect, the session ends. Raises `SandboxError` if the session has ended, `UserError` for bad `max_seconds`.
        """
        ...

    async def interrupt(self) -> None:
        """Interrupt the running cell, if any."""

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """Write files (path -> content, as in `Execution.files`). Raises `UserError` if that fails or they do not fit.

        If the code has broken the session, this does nothing, and the next cell reports the session as ended.
        """

    async def read_files(self, paths: Sequence[str], *, limit: int = 64 << 20) -> dict[str, bytes]:
        """Return the regular files among `paths`, as long as they fit into `limit` bytes together.

        If the code has broken the session, this returns none, and the next cell reports the session as ended.
        """
        ...

    async def close(self) -> None:
        """End the session with all its processes and files. A second call does nothing."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Load:
    """The load of a sandbox."""

    slots: int
    """Number of executions that can run at once."""
    busy: int
    waiting: int
    sessions: int


class Sandbox(Protocol):
    """Runs untrusted code. One sandbox serves all trajectories; executions share nothing."""

    @property
    def level(self) -> str:
        """Return the name of the isolation level; for `auto`, of the chosen level once it has started."""
        ...

    async def start(self) -> None:
        """Prepare the sandbox; a second call does nothing.

        Raises `UserError` if this machine cannot provide the isolation. The message says what to install or allow.
        """

    async def run(self, execution: Execution, *, max_queue_seconds: float = float("inf")) -> ExecutionResult:
        """Run one program in a fresh world, and remove the world afterwards.

        All its processes die when it ends, when it times out and when the caller is cancelled. Code that breaks its own
        sandbox gets a result: it counts as killed (137).

        Raises `SandboxError` if the sandbox failed, never because of the code; `SandboxBusyError` if no slot became
        free within `max_queue_seconds`; `UserError` if the compiler or runtime of the language is not installed, or
        if the files cannot be written (too large, a directory that is a file).
        """
        ...

    async def session(self, settings: SessionSettings | None = None) -> Session:
        """Open a session. Sessions take no slot from executions. Raises the errors of `run`."""
        ...

    def load(self) -> Load: ...

    async def close(self) -> None:
        """End all running code and release all resources."""


def check_limits(settings: object, *names: str) -> None:
    """Raise `UserError` if one of these attributes is not a finite number above 0."""
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise UserError(f"{name} must be a finite number above 0, got {value!r}.")


def check_memory(memory_mb: int) -> None:
    """Raise `UserError` if the interpreter does not fit."""
    if memory_mb < MIN_MEMORY_MB:
        raise UserError(f"memory_mb must be at least {MIN_MEMORY_MB}, which Python itself needs, got {memory_mb}.")


def _is_name(path: str) -> bool:
    """Return whether the path encodes bytes without NUL; surrogates may encode bytes that are not UTF-8."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def check_files(files: Mapping[str, bytes]) -> None:
    """Raise `UserError` if there are too many files or if one of the paths may not be written."""
    if len(files) > MAX_FILES:
        raise UserError(f"At most {MAX_FILES} files fit into one request, got {len(files)}: pack them into an archive.")
    for name in files:
        path = PurePosixPath(name)
        inside = not path.is_absolute() or any(
            path.is_relative_to(top) and path != PurePosixPath(top) for top in WRITABLE
        )
        if not path.parts or ".." in path.parts or not inside:
            raise UserError(
                f"files contains the path {name!r:.200}: give one relative to the working directory, without '..', or "
                f"one below {' or '.join(WRITABLE)}."
            )
        if not _is_name(name) or len(path.parts) > _MAX_DEPTH:
            raise UserError(
                f"files contains the path {name!r:.200}, which is not possible: use at most {_MAX_DEPTH} directories, "
                "no NUL characters and no lone surrogates."
            )
