"""Calls as JSON objects, or lists of them, between two tags: Hermes, Qwen2.5, Qwen3, Nemotron, Phi and others."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from agentloop.rendering.formats.base import CallFormat, CallReader, end_of_bad

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


def between(opening: str, closing: str) -> Callable[[CallReader, int], int]:
    """Return a reader of the JSON objects between two tags.

    It searches for the closing tag after the last object, so the string of an object may contain the tag.
    """
    how = f'Write each call as {opening}{{"name": "TOOL", "arguments": {{...}}}}{closing}, with valid JSON inside.'
    return partial(_read, opening=opening, closing=closing, how=how)


def _read(reader: CallReader, start: int, *, opening: str, closing: str, how: str) -> int:
    text = reader.text
    position = skip_space(text, start + len(opening))
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        while True:
            if text.startswith(closing, position) or position == len(text):
                raise Malformed("there is no JSON object in it")
            value, position = json_at(text, position)
            found += [named_call(item) for item in (value if isinstance(value, list) else [value])]
            position = skip_space(text, position)
            if text.startswith(closing, position):
                position += len(closing)
                break
            # An open tag counts as closed at the end of the turn or before the next call; the JSON is complete.
            if position == len(text) or text.startswith(opening, position):
                break
            if text[position] != "{":
                raise Malformed(f"there is text after the JSON object, or {closing} is missing: {near(text, position)}")
        if not found:
            raise Malformed("its list has no calls")
    except Malformed as error:
        end = end_of_bad(text, max(position, start + len(opening)), opening, closing)
        reader.refuse(f"This tool call cannot be read: {error}. {how}", text[start:end])
        return end
    for name, arguments in found:
        reader.add(name, arguments)
    return position


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


def named_call(value: Any) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of a decoded object. Raises `Malformed`."""
    if not isinstance(value, dict):
        raise Malformed(f"the JSON is {_kind(value)}, not an object")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed('the object has no "name"')
    return name, arguments_of(value["arguments"] if "arguments" in value else value.get("parameters", {}))


def arguments_of(value: Any) -> dict[str, Any]:
    """Return the arguments of a call, which may be a JSON string, as in APIs. Raises `Malformed`."""
    if isinstance(value, str):
        value = json_of(value) if value.strip() else {}
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise Malformed(f'"arguments" is {_kind(value)}, not an object')
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


def _kind(value: Any) -> str:
    kinds = {str: "a string", list: "a list", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
    return kinds.get(type(value), "an object")


def _format(name: str, opening: str, closing: str) -> CallFormat:
    return CallFormat(name, (opening,), re.escape(opening), between(opening, closing))


HERMES = _format("hermes", "<tool_call>", "</tool_call>")
NEMOTRON = _format("nemotron", "<TOOLCALL>", "</TOOLCALL>")
PHI = _format("phi", "<|tool_call|>", "<|/tool_call|>")
