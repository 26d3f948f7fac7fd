"""What every isolation level shares: what is run, what comes back, and the `Sandbox` and `Session` protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Literal, Protocol

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes import languages

MAX_FILES = 10_000
"""Files of one execution."""
WRITABLE = ("/tmp", "/mnt")
"""Where the code can write: fresh for every execution and every session, limited in size, gone afterwards."""
WORKING_DIRECTORY = "/tmp/work"


class SandboxBusyError(SandboxError):
    """No slot became free in the time that the caller would wait."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Execution:
    """One program to run. Raises `UserError` where a field cannot be used."""

    code: str
    """Written to the main file of its language (`main.py`, `main.sh`, ...) in the working directory and run there."""
    language: str = "python"
    """One of `languages.NAMES`."""
    stdin: str | bytes | None = None
    """None is an empty, closed stdin."""
    timeout: float = 10.0
    """Seconds of wall clock from the moment the code starts: waiting for a slot and setting it up do not count."""
    compile_timeout: float = 10.0
    """The same for the compiler, in languages that have one."""
    memory_mb: int = 1024
    """MiB that its processes may have together, files in memory included; where the level has no cgroup, each."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> content, there before the code starts. Relative to the working directory, or below `WRITABLE`."""
    fetch_files: Sequence[str] = ()
    """Paths, as the code sees them, to read after it has ended. What is missing or no regular file is left out."""
    output_bytes: int = 1 << 20
    """How much of stdout, and of stderr, is kept. The rest is read and dropped, so the code never blocks on it."""
    fetch_bytes: int = 64 << 20
    """How much of all fetched files together is kept; a file that does not fit is left out."""
    echo: bool = False
    """Python only: print the value of the last line if it is an expression, as the interactive interpreter does."""

    def __post_init__(self) -> None:
        languages.find(self.language)
        check_limits(self, "timeout", "compile_timeout", "memory_mb", "output_bytes", "fetch_bytes")
        check_files(self.files)
        for path in self.fetch_files:
            if not path or "\0" in path:
                raise UserError(f"fetch_files of an execution holds {path!r}, which is no path.")


@dataclass(slots=True, frozen=True, kw_only=True)
class ProcessResult:
    """What one process did. Bytes that are not UTF-8 are shown as U+FFFD."""

    stdout: str
    stderr: str
    return_code: int | None
    """128 + N where signal N ended it, as shells have it; None where the time ran out."""
    seconds: float
    """Wall clock from its start to its end."""
    timed_out: bool = False
    oom: bool = False
    """Ended for want of memory: killed by the kernel, or a `MemoryError` that nothing caught."""
    output_truncated: bool = False

    @property
    def signal(self) -> int | None:
        """The signal that ended it. `exit(128 + N)` looks the same."""
        return self.return_code - 128 if self.return_code is not None and 128 < self.return_code <= 192 else None

    @property
    def ok(self) -> bool:
        return self.return_code == 0

    def __str__(self) -> str:
        return "\n".join(f"{item.name}: {getattr(self, item.name)!r}" for item in fields(self))


@dataclass(slots=True, frozen=True, kw_only=True)
class ExecutionResult(ProcessResult):
    """What running an execution did; where it did not compile, the fields are those of the compiler."""

    compilation: ProcessResult | None = None
    """What the compiler did; None in languages that have none."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What was fetched, by the path asked for."""
    files_truncated: bool = False
    """A file was left out because of `fetch_bytes`."""
    queue_seconds: float = 0.0
    """How long it waited for a slot."""

    @property
    def compiled(self) -> bool:
        return self.compilation is None or self.compilation.ok


@dataclass(slots=True, frozen=True, kw_only=True)
class SessionSettings:
    """What a session is made with. Raises `UserError` where a field cannot be used."""

    memory_mb: int = 1024
    files: Mapping[str, bytes] = field(default_factory=dict)
    idle_seconds: float = 1800.0
    """It ends by itself when nothing ran in it for so long."""
    output_bytes: int = 1 << 20
    """Of stdout, and of stderr, of each cell."""
    display_bytes: int = 8 << 20
    """Of all that a cell shows; an image that does not fit is left out and flags `output_truncated`."""

    def __post_init__(self) -> None:
        check_limits(self, "memory_mb", "idle_seconds", "output_bytes", "display_bytes")
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
    """What one cell of a session did."""

    stdout: str
    stderr: str
    displays: Sequence[Mapping[str, str | bytes]] = ()
    """What it shows, in order: the value of a last expression and figures, each a mapping from MIME type to text, or
    to bytes where the type is no text (`image/png`)."""
    error: CellError | None = None
    seconds: float
    timed_out: bool = False
    """Interrupted because its time was over."""
    oom: bool = False
    output_truncated: bool = False
    session_ended: Literal["", "exited", "killed", "oom"] = ""
    """Why the session is over where this cell ended it (`os._exit`, a signal, no answer to the interrupt): what it
    knew is lost."""

    @property
    def ok(self) -> bool:
        return self.error is None and not self.timed_out and not self.session_ended


class Session(Protocol):
    """A Python that remembers: cells share variables, files and processes, with each other and nobody else."""

    id: str

    async def run(self, code: str, *, max_seconds: float = 10.0) -> CellResult:
        """Run a cell; the value of a last line that is an expression is shown. One at a time: others wait.

        After `max_seconds`, and when this is cancelled, the cell is interrupted as Ctrl-C does; where that has no
        effect the session is ended. Raises `SandboxError` where the session is over, `UserError` for bad `max_seconds`.
        """
        ...

    async def interrupt(self) -> None:
        """Interrupt the cell that runs now, if any."""

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """Path -> content, as in `Execution.files`. Raises `UserError`, also where it does not fit."""

    async def read_files(self, paths: Sequence[str], *, limit: int = 64 << 20) -> dict[str, bytes]:
        """The regular files among `paths`, as long as they fit into `limit` bytes together."""
        ...

    async def close(self) -> None:
        """End it with all its processes and files. Does nothing the second time."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Load:
    """How busy a sandbox is."""

    slots: int
    """Executions that can run at once."""
    busy: int
    waiting: int
    sessions: int


class Sandbox(Protocol):
    """Runs untrusted code. One serves all trajectories; executions share nothing."""

    @property
    def level(self) -> str:
        """The name of the isolation level; for `auto`, once it has started, of the one that was chosen."""
        ...

    async def start(self) -> None:
        """Make it ready; does nothing the second time.

        Raises `UserError`, which says what to install or allow, where this machine cannot give the isolation.
        """

    async def run(self, execution: Execution, *, max_queue_seconds: float = float("inf")) -> ExecutionResult:
        """Run one program in a world of its own, which goes with it: whatever it started dies when it ends, when its
        time is over and when this is cancelled.

        Raises `SandboxError` where the sandbox failed, never for what the code did; `SandboxBusyError` where no slot
        became free in `max_queue_seconds`; `UserError` where the language's compiler or runtime is not installed, and
        where the files cannot be written (too large, a directory that is a file).
        """
        ...

    async def session(self, settings: SessionSettings | None = None) -> Session:
        """Open a session. Sessions take no slot from executions. Raises as `run` does."""
        ...

    def load(self) -> Load: ...

    async def close(self) -> None:
        """End what still runs and release everything."""


def check_limits(settings: object, *names: str) -> None:
    """Raises `UserError` where one of these attributes is not a finite number above 0."""
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise UserError(f"{name} must be a finite number above 0, got {value!r}.")


def check_files(files: Mapping[str, bytes]) -> None:
    """Raises `UserError` where a path may not be written."""
    if len(files) > MAX_FILES:
        raise UserError(f"At most {MAX_FILES} files fit into one request, got {len(files)}: pack them into one.")
    for name in files:
        path = PurePosixPath(name)
        inside = not path.is_absolute() or any(
            path.is_relative_to(top) and path != PurePosixPath(top) for top in WRITABLE
        )
        if not path.parts or ".." in path.parts or "\0" in name or not inside:
            raise UserError(
                f"files holds the path {name!r}: give one relative to the working directory, without '..', or one "
                f"below {' or '.join(WRITABLE)}."
            )
