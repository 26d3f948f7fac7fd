"""The parts of a shell script, as `statements` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

DECLARES = ("declare", "typeset", "local", "export", "readonly")
"""Commands whose arguments are assignments."""


@dataclass(slots=True, frozen=True)
class Text:
    """Literal characters."""

    text: str
    quoted: bool = False


@dataclass(slots=True, frozen=True)
class Parameter:
    """`$name`, or `${name}` with one of its operators."""

    name: str
    quoted: bool = False
    index: Word | None = None
    """Subscript between brackets."""
    length: bool = False
    """Whether it is `${#name}`."""
    indirect: bool = False
    """Whether it is `${!name}`."""
    operator: str = ""
    argument: Word = ()


@dataclass(slots=True, frozen=True)
class Output:
    """`$(...)` or backquotes."""

    body: tuple[AndOr, ...]
    source: str
    quoted: bool = False


@dataclass(slots=True, frozen=True)
class Sum:
    """`$((...))`."""

    expression: Word
    quoted: bool = False


Word: TypeAlias = "tuple[Text | Parameter | Output | Sum, ...]"
"""What becomes one argument before splitting."""


@dataclass(slots=True, frozen=True)
class Assignment:
    """`name=value`, `name[index]+=value` or `name=(elements)`."""

    name: str
    value: Word | None
    """None: an array."""
    append: bool = False
    index: Word | None = None
    elements: tuple[tuple[Word | None, Word], ...] = ()
    """Subscript, if written, and value of each element of an array."""


@dataclass(slots=True, frozen=True)
class Redirect:
    """`2> target`."""

    descriptor: int
    operator: str
    target: Word = ()
    document: list[Word] = field(default_factory=list)
    """Text of a here-document, which is read after its line."""


@dataclass(slots=True, frozen=True)
class Simple:
    """Assignments and the words of a command."""

    place: int
    """Offset in the script."""
    assignments: tuple[Assignment, ...] = ()
    words: tuple[Word | Assignment, ...] = ()
    """Arguments of `declare` and the like may be assignments."""


@dataclass(slots=True, frozen=True)
class Group:
    """`{ ...; }` or `( ... )`."""

    body: tuple[AndOr, ...]
    subshell: bool = False


@dataclass(slots=True, frozen=True)
class If:
    """Conditions with their branches; `else` has no condition."""

    branches: tuple[tuple[tuple[AndOr, ...] | None, tuple[AndOr, ...]], ...]


@dataclass(slots=True, frozen=True)
class Loop:
    """`while` and `until`."""

    condition: tuple[AndOr, ...]
    body: tuple[AndOr, ...]
    until: bool = False


@dataclass(slots=True, frozen=True)
class For:
    """`for name in words`; None: the positional parameters."""

    name: str
    words: tuple[Word, ...] | None
    body: tuple[AndOr, ...]


@dataclass(slots=True, frozen=True)
class Count:
    """`for ((first; condition; step))`."""

    first: Word
    condition: Word
    step: Word
    body: tuple[AndOr, ...]


@dataclass(slots=True, frozen=True)
class Case:
    """`case word in`, with patterns, body and terminator of each item."""

    word: Word
    items: tuple[tuple[tuple[Word, ...], tuple[AndOr, ...], str], ...]


@dataclass(slots=True, frozen=True)
class Function:
    """`name() { ...; }`."""

    name: str
    body: Command


@dataclass(slots=True, frozen=True)
class Evaluate:
    """`((...))`."""

    expression: Word


@dataclass(slots=True, frozen=True)
class Test:
    """A node of `[[ ... ]]`: an operator with words or nodes."""

    operator: str
    words: tuple[Word, ...] = ()
    nodes: tuple[Test, ...] = ()


@dataclass(slots=True, frozen=True)
class Redirected:
    """A command with its redirections."""

    command: Command
    redirects: tuple[Redirect, ...]


Command: TypeAlias = "Simple | Group | If | Loop | For | Count | Case | Function | Evaluate | Test | Redirected"


@dataclass(slots=True, frozen=True)
class Pipeline:
    """`! a | b`."""

    commands: tuple[Command, ...]
    negated: bool = False


@dataclass(slots=True, frozen=True)
class AndOr:
    """Pipelines joined by `&&` and `||`; the first operator is empty."""

    parts: tuple[tuple[str, Pipeline], ...]
