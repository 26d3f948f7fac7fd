"""Parse Hydra overrides: `key=value` on verl's command line.

This implements the grammar of Hydra 1.3 (hydra.cc/docs/advanced/override_grammar/basic) without functions and sweeps.
Hydra itself needs an older OmegaConf.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from agentloop.errors import UserError


@dataclass(slots=True, frozen=True)
class Override:
    """One override."""

    key: str
    """Dotted key."""
    value: Any
    """New value; None if the key is deleted."""
    action: Literal["set", "delete"] = "set"


def parse_override(text: str) -> Override:
    """Parse `key=value`, `+key=value`, `++key=value`, `~key` or `~key=value`. Raises `UserError`."""
    key, equals, value = text.partition("=")
    if key.startswith("~"):
        return Override(key[1:].strip(), None, "delete")
    if not equals or not key.lstrip("+"):
        raise UserError(
            f"{text!r} is not a Hydra override. Write key=value, as after `python -m verl.trainer.main_ppo`."
        )
    return Override(key.lstrip("+").strip(), parse_value(value))


def parse_value(text: str) -> Any:
    """Parse a string, number, bool, None, list or dict. Raises `UserError` if Hydra would fail."""
    reader = _Reader(text)
    value = reader.element(stops="")
    if not reader.at_end:
        raise UserError(f"Hydra cannot read the value {text!r} after {text[: reader.place]!r}. Check its quotes.")
    return value


_NUMBERS = (
    (re.compile(r"[+-]?(0|[1-9]\d*(_\d+)*)"), int),
    (re.compile(r"[+-]?((\d+(_\d+)*\.\d*|\.\d+)([eE][+-]?\d+)?|\d+(_\d+)*[eE][+-]?\d+|inf|nan)", re.IGNORECASE), float),
)
_WORDS = {"null": None, "true": True, "false": False}
_ESCAPED = "\\()[]{}:=, \t"


class _Reader:
    """Reads one value from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0

    @property
    def at_end(self) -> bool:
        return self.place >= len(self.text)

    @property
    def _next(self) -> str:
        return self.text[self.place : self.place + 1]

    def element(self, stops: str) -> Any:
        """Read a value up to one of the characters in `stops`, which is not consumed."""
        self._skip_spaces()
        match self._next:
            case "[":
                value: Any = list(self._items("]"))
            case "{":
                value = dict(self._items("}"))
            case "'" | '"':
                value = self._quoted()
            case _:
                return _typed(self._bare(stops))
        self._skip_spaces()
        return value

    def _items(self, end: str) -> list[Any]:
        self.place += 1
        items: list[Any] = []
        self._skip_spaces()
        while self._next != end:
            if self.at_end:
                raise UserError(f"Hydra cannot read the value {self.text!r}: {end!r} is missing.")
            items.append(self._pair() if end == "}" else self.element(stops=",]"))
            if self._next == ",":
                self.place += 1
                self._skip_spaces()
        self.place += 1
        return items

    def _pair(self) -> tuple[Any, Any]:
        key = self.element(stops=":")
        if self._next != ":":
            raise UserError(f"Hydra cannot read the value {self.text!r}: ':' is missing after {key!r}.")
        self.place += 1
        return key, self.element(stops=",}")

    def _quoted(self) -> str:
        quote = self._next
        found = re.compile(rf"{quote}((?:\\.|[^\\{quote}])*){quote}", re.DOTALL).match(self.text, self.place)
        if found is None:
            raise UserError(f"Hydra cannot read the value {self.text!r}: a {quote} is missing.")
        self.place = found.end()
        return found[1].replace(f"\\{quote}", quote)

    def _bare(self, stops: str) -> str:
        """Read unquoted characters; an interpolation (`${...}`) is kept whole."""
        characters: list[str] = []
        depth = 0
        while not self.at_end and (depth or self._next not in stops):
            if self._next == "\\" and self.text[self.place + 1 : self.place + 2] in tuple(_ESCAPED):
                self.place += 1
            elif self._next == "{" and (depth or self.text[self.place - 1 : self.place] == "$"):
                depth += 1
            elif depth and self._next == "}":
                depth -= 1
            characters.append(self._next)
            self.place += 1
        return "".join(characters).strip()

    def _skip_spaces(self) -> None:
        while self._next in (" ", "\t"):
            self.place += 1


def _typed(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for pattern, type_ in _NUMBERS:
        if pattern.fullmatch(text):
            return type_(text)
    return text
