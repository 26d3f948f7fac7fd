"""What every isolation level shares: what is run, what comes back, and the `Sandbox` protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import ClassVar, Literal, Protocol

from agentloop.errors import UserError

Language = Literal["python", "bash"]
LANGUAGES: tuple[Language, ...] = ("python", "bash")

MAX_FILES = 200
"""Files of one execution: each travels as a descriptor, and the kernel passes 253 at once."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Execution:
    """One program to run. Raises `UserError` where a field cannot be used."""

    code: str
    """Written to `main.py` (or `main.sh`) in the working directory and run from there."""
    language: Language = "python"
    stdin: str | bytes | None = None
    """None is an empty, closed stdin."""
    timeout: float = 10.0
    """Seconds of wall clock from the moment the code starts: waiting for a slot and setting it up do not count."""
    memory_mb: int = 1024
    """MiB one process may allocate."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path relative to the working directory -> content, there before the code starts."""
    output_bytes: int = 1 << 20
    """How much of stdout, and of stderr, is kept. The rest is read and dropped, so the code never blocks on it."""
    echo: bool = False
    """Python only: print the value of the last line if it is an expression, as the interactive interpreter does."""

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise UserError(f"The sandbox runs {' and '.join(LANGUAGES)}, not {self.language!r}.")
        for name in ("timeout", "memory_mb", "output_bytes"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"{name} of an execution must be above 0 and finite, got {getattr(self, name)}.")
        if len(self.files) > MAX_FILES:
            raise UserError(f"An execution takes at most {MAX_FILES} files, got {len(self.files)}: pack them into one.")
        for name in self.files:
            path = PurePosixPath(name)
            if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
                raise UserError(f"The file {name!r} of an execution must be relative to the working directory.")


@dataclass(slots=True, frozen=True, kw_only=True)
class ExecutionResult:
    """What running it did. Bytes that are not UTF-8 are shown as U+FFFD."""

    stdout: str
    stderr: str
    return_code: int | None
    """128 + N where signal N ended it, as shells have it; None where the time ran out."""
    seconds: float
    """Wall clock from the start of the code to its end."""
    timed_out: bool = False
    oom: bool = False
    """Ended for want of memory, as far as that can be told from outside (a `MemoryError` that nothing caught)."""
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


class Sandbox(Protocol):
    """Runs untrusted code. One serves all trajectories; executions share nothing."""

    level: ClassVar[str]
    """The name of the isolation level."""

    async def start(self) -> None:
        """Make it ready; does nothing the second time.

        Raises `UserError`, which says what to install or allow, where this machine cannot give the isolation.
        """

    async def run(self, execution: Execution) -> ExecutionResult:
        """Run one program in a world of its own, which goes with it: whatever it started dies when it ends, when its
        time is over and when this is cancelled.

        Raises `SandboxError` where the sandbox failed, never for what the code did.
        """
        ...

    async def close(self) -> None:
        """End what still runs and release everything."""
