"""Strict JSON, as calls contain it: no NaN, no duplicate keys, no bottomless nesting."""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

DEEPEST = 64
"""Largest depth of nested values: copying, pickling and saving arguments recurse once per level."""
_SPACE = re.compile(r"\s*")


class Malformed(Exception):
    """A call cannot be parsed; the message explains the reason to the model."""


def _refuse_constant(word: str) -> Any:
    raise Malformed(f"{word} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise Malformed(f"the number {digits[:40]} is too large")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise Malformed(f"{next(key for key in found if keys.count(key) > 1)[:40]!r} is given twice")
    return found


_decode = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_without_duplicates
).raw_decode
"""Decodes strict JSON: Python's default also accepts NaN, Infinity and duplicate keys."""


def json_at(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value at an index, and the index after it. Raises `Malformed`."""
    try:
        value, end = _decode(text, position)
    except json.JSONDecodeError as error:
        raise Malformed(f"{error.msg} at {near(text, error.pos)}") from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; brackets nested a thousand deep
        raise Malformed(f"the JSON is too large ({type(error).__name__})") from None
    if text.count("[", position, end) + text.count("{", position, end) > DEEPEST and _is_too_deep(value):
        raise Malformed("its values are nested too deeply")
    if text.find("\\u", position, end) >= 0:
        _check_surrogates(value)
    return value, end


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = list(itertools.chain.from_iterable(inside))
    return any(isinstance(each, dict | list) for each in level)


def arguments_of(value: Any) -> dict[str, Any]:
    """Return the arguments of a call, which may be a JSON string, as in APIs. Raises `Malformed`."""
    if isinstance(value, str):
        value = json_of(value) if value.strip() else {}
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise Malformed(f'"arguments" is {kind_of(value)}, not an object')
    return value


def _check_surrogates(value: Any) -> None:
    r"""Reject a \u escape of half a surrogate pair, which tools cannot encode."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Malformed("a \\u escape is half of a surrogate pair") from None


def json_of(text: str) -> Any:
    """Return the JSON value of a whole text. Raises `Malformed`."""
    value, end = json_at(text, skip_space(text, 0))
    if (rest := skip_space(text, end)) != len(text):
        raise Malformed(f"there is text after the JSON object: {near(text, rest)}")
    return value


def skip_space(text: str, position: int) -> int:
    """Return the index of the next character that is not white space."""
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def near(text: str, position: int) -> str:
    """Return the text around an index, quoted."""
    return f"{text[max(0, position - 20) : position + 20]!r}"


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value for error messages."""
    kinds = {str: "a string", list: "a list", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
    return kinds.get(type(value), "an object")
