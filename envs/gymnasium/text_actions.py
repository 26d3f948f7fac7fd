"""Find the action in a turn of plain text: its last part that can be an action.

Text        the text                         Discrete with names    the last of the names
Discrete    the last integer                 any other              the last JSON value
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from agentloop.tools.schema import ArgumentError

_INTEGER = re.compile(r"(?<![\w.])-?\d+(?![\w]|\.\d)")
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_OPENING = re.compile(r'\{(?=\s*["}])|\[(?=\s*["\]\[{\d\-tfnNI])')
"""The beginning of an object or an array, up to the first character of its content."""
_MAX_OPENINGS = 1000
"""Maximum attempts to parse JSON in a text. Each failure costs an error, which counts all lines before it."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
"""A string or a bracket of JSON."""
_DECODER = json.JSONDecoder()


def action_in(text: str, space: spaces.Space, names: Sequence[str], pattern: re.Pattern[str] | None) -> Any:
    """Return the value of the action, not yet checked against the space.

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
        raise ArgumentError(f"There is no action in this: answer with one of {', '.join(names)}.")
    return found[-1]


def _last(pattern: re.Pattern[str], text: str, what: str) -> str:
    found = pattern.findall(text)
    if not found:
        raise ArgumentError(f"There is no action in this: answer with {what}.")
    return found[-1]


def _last_json(text: str) -> Any:
    found, position = None, 0
    for attempt in itertools.count():
        if (opening := _OPENING.search(text, position)) is None:
            break
        if attempt == _MAX_OPENINGS:
            raise ArgumentError(
                f"More than {_MAX_OPENINGS} brackets in this may begin JSON: answer with the action only."
            )
        start = opening.start()
        try:
            _, position = _DECODER.raw_decode(text, start)
            found = slice(start, position)
        except json.JSONDecodeError as error:
            # All values that are still open there would also fail, and trying each would take quadratic time.
            found = _last_closed(text, start, error.pos) or found
            position = max(error.pos, start + 1)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"The JSON in this cannot be read: {error}.") from error
    if found is None:
        raise ArgumentError("There is no action in this: write it as JSON, an array or an object.")
    return json.loads(text[found])


def _last_closed(text: str, start: int, end: int) -> slice | None:
    """Return the place of the last array or object that closes in `text[start:end]`, the beginning of a JSON value."""
    opened: list[int] = []
    closed = None
    for token in _TOKEN.finditer(text, start, end):
        if token[0] in "[{":
            opened.append(token.start())
        elif token[0] in "]}":
            closed = slice(opened.pop(), token.end())
    return closed
