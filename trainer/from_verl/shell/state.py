"""What a shell knows while it follows a script: variables, parameters, functions, folder and streams."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from agentloop.trainer.from_verl.shell.syntax import Command, Output
from agentloop.trainer.from_verl.shell.unknown import Unknowns, Unreadable

Array = dict[int | str, str]
"""An indexed or associative array; never changed, but replaced."""

MAX_TEXT = 200_000
"""Characters of one value."""
_MAX_WORK = 300_000
"""Characters and words that a script may work on, so that any script ends within seconds."""


@dataclass(slots=True)
class Record:
    """What all shells of one script share."""

    script: str
    unknowns: Unknowns = field(default_factory=Unknowns)
    commands: list[list[str]] = field(default_factory=list)
    """Words of every command that a real shell would start."""
    notes: list[str] = field(default_factory=list)
    """What a person should check."""
    missed: set[str] = field(default_factory=set)
    """Variables that the script reads and nobody set."""
    printed: str = ""
    """What the script prints itself, with marks for the outputs of programs."""
    complaint: str = ""
    """Why the script was not followed to its end; empty if it was."""
    work: int = 0

    def spend(self, amount: int) -> None:
        """Count work. Raises `Unreadable` at the limit, which a loop that never ends reaches."""
        self.work += amount
        if self.work > _MAX_WORK:
            raise Unreadable("it still ran at the limit of work, as if it waited for something")

    def note(self, text: str) -> None:
        """Record a note once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(slots=True)
class Shell:
    """A shell, or a copy of it in a subshell."""

    record: Record
    variables: dict[str, str | Array]
    output_of: Callable[[Shell, Output], str]
    """Follows a substitution in a copy of the shell, and returns what it prints."""
    parameters: tuple[str, ...] = ()
    functions: dict[str, Command] = field(default_factory=dict)
    associative: frozenset[str] = frozenset()
    """Names of associative arrays."""
    stdin: str = ""
    output: list[str] = field(default_factory=list)
    status: int = 0
    depth: int = 0
    """Functions and substitutions inside each other."""
    functions_deep: int = 0
    """Functions that are being called."""
    restored: list[tuple[str, str | Array | None]] = field(default_factory=list)
    """Values to give back at the end of a function that declared names local."""

    @property
    def folder(self) -> str:
        """The folder of the script's last `cd`."""
        return self.scalar("PWD") or "/"

    def copy(self, stdin: str | None = None) -> Shell:
        """Return a subshell with an output of its own."""
        return Shell(
            self.record, dict(self.variables), self.output_of, self.parameters, dict(self.functions),
            self.associative, self.stdin if stdin is None else stdin, [], self.status, self.depth,
            self.functions_deep,
        )  # fmt: skip

    def print(self, text: str) -> None:
        """Print to the standard output."""
        self.record.spend(len(text))
        self.output.append(text)

    def get(self, name: str) -> str | Array | None:
        """Return the value of a variable; None if it is not set."""
        value = self.variables.get(name)
        if value is None:
            self.record.missed.add(name)
        return value

    def scalar(self, name: str) -> str:
        """Return the value that `$name` has: element 0 of an array."""
        value = self.variables.get(name, "")
        return value.get(0, value.get("0", "")) if isinstance(value, dict) else value

    def set(self, name: str, value: str | Array) -> None:
        """Set a variable."""
        size = len(value) if isinstance(value, str) else sum(map(len, value.values())) + len(value)
        self.record.spend(1 + size // 16)
        if size > MAX_TEXT:
            raise Unreadable(f"{name} has more than {MAX_TEXT} characters")
        self.variables[name] = value

    def unset(self, name: str) -> None:
        """Forget a variable."""
        self.variables.pop(name, None)

    def path(self, name: str) -> str:
        """Return an absolute path without links followed."""
        return os.path.normpath(os.path.join(self.folder, name))
