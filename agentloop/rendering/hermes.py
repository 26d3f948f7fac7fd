"""Calls as JSON in `<tool_call>` tags: Hermes, Qwen2.5, Qwen3 and many others."""

from __future__ import annotations

import json
import re
from typing import Any

from agentloop.rendering.parsing import CallFormat, CallReader, end_of_bad

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
_HOW = f'Write each call as {OPEN}{{"name": "TOOL", "arguments": {{...}}}}{CLOSE}, with valid JSON inside.'
_SPACE = re.compile(r"\s*")
_decode = json.JSONDecoder().raw_decode


class _Malformed(Exception):
    """What is wrong, in words for the model."""


def _read(reader: CallReader, start: int) -> int:
    """The objects of one tag, which ends behind the last of them: a closing tag inside a JSON string is a string."""
    text = reader.text
    position = _skip(text, start + len(OPEN))
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        while True:
            value, position = _json_at(text, position)
            found += [_call(item) for item in (value if isinstance(value, list) else [value])]
            position = _skip(text, position)
            if text.startswith(CLOSE, position):
                position += len(CLOSE)
                break
            # A tag left open is taken as closed where the turn or the next call begins: the JSON is whole.
            if position == len(text) or text.startswith(OPEN, position):
                break
            if text[position] != "{":
                raise _Malformed(
                    f"there is text behind the JSON object, or {CLOSE} is missing: {_near(text, position)}"
                )
        if not found:
            raise _Malformed("its list holds no call")
    except _Malformed as error:
        end = end_of_bad(text, max(position, start + len(OPEN)), OPEN, CLOSE)
        reader.refuse(f"This tool call cannot be read: {error}. {_HOW}", text[start:end])
        return end
    for name, arguments in found:
        reader.add(name, arguments)
    return position


def _json_at(text: str, position: int) -> tuple[Any, int]:
    if text.startswith(CLOSE, position) or position == len(text):
        raise _Malformed("there is no JSON object in it")
    try:
        value, end = _decode(text, position)
    except json.JSONDecodeError as error:
        raise _Malformed(f"{error.msg} at {_near(text, error.pos)}") from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; brackets nested a thousand deep
        raise _Malformed(f"the JSON is too large ({type(error).__name__})") from None
    if text.find("\\u", position, end) >= 0:
        _check_surrogates(value)
    return value, end


def _call(value: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a decoded object."""
    if not isinstance(value, dict):
        raise _Malformed(f"the JSON is {_kind(value)}, not an object")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise _Malformed('the object has no "name"')
    arguments = value["arguments"] if "arguments" in value else value.get("parameters", {})
    if isinstance(arguments, str):  # encoded twice, as the APIs do it
        arguments = _decoded(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise _Malformed(f'"arguments" is {_kind(arguments)}, not an object')
    return name, arguments


def _check_surrogates(value: Any) -> None:
    """A \\u escape can name half of a character, which no tool could encode."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _Malformed("a \\u escape is half of a surrogate pair") from None


def _decoded(text: str) -> Any:
    value, end = _json_at(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise _Malformed('"arguments" is a string with text behind its JSON object')
    return value


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def _near(text: str, position: int) -> str:
    return f"{text[max(0, position - 20) : position + 20]!r}"


def _kind(value: Any) -> str:
    kinds = {str: "a string", list: "a list", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
    return kinds.get(type(value), "an object")


HERMES = CallFormat("hermes", re.escape(OPEN), _read)
