"""Find the action in a turn of plain text: the last part of it that can be one.

Text        the text                         Discrete with names    the last of the names
Discrete    the last integer                 any other              the last JSON value
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from agentloop.tools.schema import ArgumentError

_INTEGER = re.compile(r"(?<![\w.])-?\d+(?![\w]|\.\d)")
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_OPENING = re.compile(r"[\[{]")
_DECODER = json.JSONDecoder()


def action_in(text: str, space: spaces.Space, names: Sequence[str], pattern: re.Pattern[str] | None) -> Any:
    """Return the value of the action, which is not checked against the space yet.

    With a `pattern`, only its last match counts, or the first group of that match. Raises `ArgumentError` if the text
    has no action.
    """
    if pattern is not None:
        matches = list(pattern.finditer(text))
        if not matches:
            raise ArgumentError(f"There is no action in this: it must have the form {pattern.pattern}")
        text = matches[-1][1 if pattern.groups else 0]
    if isinstance(space, spaces.Text):
        return text.strip()
    if names:
        return _last_name(text, names)
    if isinstance(space, spaces.Discrete):
        return _last(_INTEGER, text, "an integer")
    if isinstance(space, spaces.Box) and not space.shape:
        return _last(_NUMBER, text, "a number")
    return _last_json(text)


def hint(space: spaces.Space, schema: dict[str, Any], names: Sequence[str]) -> str:
    """Return the instructions on how to answer, for the first prompt."""
    if isinstance(space, spaces.Text):
        return ""
    if names:
        return f"Answer with one of: {', '.join(names)}."
    if isinstance(space, spaces.Discrete):
        return f"Answer with an integer from {schema['minimum']} to {schema['maximum']}."
    return f"Answer with JSON of this schema: {json.dumps(schema)}"


def _last_name(text: str, names: Sequence[str]) -> str:
    longest_first = sorted(names, key=len, reverse=True)  # "up left" must match before "up"
    found = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", text, re.IGNORECASE)
    if not found:
        raise ArgumentError(f"There is no action in this: say one of {', '.join(names)}.")
    return found[-1]


def _last(pattern: re.Pattern[str], text: str, what: str) -> str:
    found = pattern.findall(text)
    if not found:
        raise ArgumentError(f"There is no action in this: say {what}.")
    return found[-1]


def _last_json(text: str) -> Any:
    value, position, is_found = None, 0, False
    while (start := _OPENING.search(text, position)) is not None:
        try:
            value, position = _DECODER.raw_decode(text, start.start())
            is_found = True
        except (json.JSONDecodeError, RecursionError):
            position = start.start() + 1
    if not is_found:
        raise ArgumentError("There is no action in this: say it as JSON, an array or an object.")
    return value
