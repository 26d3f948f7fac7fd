"""Calls of Gemma 4: `<|tool_call>call:NAME{key:value,...}<tool_call|>`, with bare keys and strings between `<|"|>`."""

from __future__ import annotations

import math
import re
from typing import Any

from agentloop.rendering.formats.base import Begun, CallFormat, CallReader, end_of_bad
from agentloop.rendering.formats.beginnings import beginning, without_begun
from agentloop.rendering.formats.strict_json import DEEPEST, Malformed, near

_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME = re.compile(r"\s*call:\s*(?P<name>[^\s{}<]{1,256}+)\s*(?=\{)")
_KEY = re.compile(
    r"(?:<\|\"\|>(?P<quoted>.*?)<\|\"\|>|(?P<bare>[^\s:,{}\[\]<]*+(?:[^\S\n]++[^\s:,{}\[\]<]++)*+))\s*:\s*", re.DOTALL
)
"""Bare keys may contain spaces or be empty, because templates write any object like this."""
_NUMBER = re.compile(r"-?\d+(?P<fraction>\.\d+)?(?P<exponent>[eE][+-]?\d+)?(?=[,}\]\s])")
_WORDS = {"true": True, "false": False, "null": None, "None": None}
_WORD = re.compile(r"\w+")
_LONGEST_NUMBER = 400


def _read(reader: CallReader, start: int) -> int:
    text = reader.text
    position = start + len(_OPEN)
    name = _NAME.match(text, position)
    try:
        if name is None:
            raise Malformed(f"no function is named at {near(text, position)}")
        arguments, position = _value(text, name.end(), 0)
        if not text.startswith(_CLOSE, position) and position < len(text):
            raise Malformed(f"{_CLOSE} is missing at {near(text, position)}")
    except Malformed as error:
        end = end_of_bad(text, max(position, start + len(_OPEN)), _OPEN, _CLOSE)
        how = f"Write each call as {_OPEN}call:TOOL{{key:value}}{_CLOSE}, with text between {_QUOTE} and {_QUOTE}"
        reader.refuse(f"This tool call cannot be read: {error}. {how}.", text[start:end], name["name"] if name else "")
        return end
    reader.add(name["name"], arguments)
    return position + len(_CLOSE)


def _begin(reader: CallReader, start: int) -> Begun | None:
    text = reader.text
    name = _NAME.match(text, start + len(_OPEN))
    if name is None:
        return None
    pairs: dict[str, Any] = {}
    position = name.end()
    while text.startswith(("{", ","), position):
        found = _KEY.match(text, _skip(text, position + 1))
        key = None if found is None else _name_of(found)
        if found is None or key is None or key in pairs:
            break
        try:
            value, position = _value(text, found.end(), 1)
            position = _skip(text, position)
            is_certain = text.startswith((",", "}"), position)
        except Malformed:
            is_certain = False
        if not is_certain:
            if not text.startswith(_QUOTE, found.end()):
                break
            return Begun(name["name"], beginning(pairs, key, without_begun(text[found.end() + len(_QUOTE) :], _QUOTE)))
        pairs[key] = value
    return Begun(name["name"], beginning(pairs))


def _value(text: str, position: int, depth: int) -> tuple[Any, int]:
    """Return the value at an index, and the index after it. Raises `Malformed`."""
    if depth > DEEPEST:
        raise Malformed("its values are nested too deeply")
    if text.startswith(_QUOTE, position):
        end = text.find(_QUOTE, position + len(_QUOTE))
        if end < 0:
            raise Malformed(f"a text is not closed by {_QUOTE}: {near(text, position)}")
        return text[position + len(_QUOTE) : end], end + len(_QUOTE)
    if text.startswith("{", position):
        return _object(text, position + 1, depth)
    if text.startswith("[", position):
        return _list(text, position + 1, depth)
    if number := _NUMBER.match(text, position):
        if len(number[0]) > _LONGEST_NUMBER:
            raise Malformed("a number has too many digits")
        is_float = number["fraction"] or number["exponent"]
        if is_float and not math.isfinite(float(number[0])):
            raise Malformed(f"the number {number[0][:40]} is too large")
        return (float(number[0]) if is_float else int(number[0])), number.end()
    word = _WORD.match(text, position)
    if word is None or word[0] not in _WORDS:
        raise Malformed(f"there is no value at {near(text, position)}; write text between {_QUOTE} and {_QUOTE}")
    return _WORDS[word[0]], word.end()


def _object(text: str, position: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    position = _skip(text, position)
    while not text.startswith("}", position):
        key = _KEY.match(text, position)
        if key is None:
            raise Malformed(f"there is no key at {near(text, position)}")
        name = _name_of(key)
        if name in found:
            raise Malformed(f"{name!r} is given twice")
        found[name], position = _value(text, key.end(), depth + 1)
        position = _divided(text, position, "}")
    return found, position + 1


def _name_of(key: re.Match[str]) -> str:
    name: str = key["quoted"] if key["bare"] is None else key["bare"]
    return name


def _list(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    found = []
    position = _skip(text, position)
    while not text.startswith("]", position):
        value, position = _value(text, position, depth + 1)
        found.append(value)
        position = _divided(text, position, "]")
    return found, position + 1


def _divided(text: str, position: int, closing: str) -> int:
    """Return the index of the next item, or of the closing bracket."""
    position = _skip(text, position)
    if text.startswith(",", position):
        return _skip(text, position + 1)
    if not text.startswith(closing, position):
        raise Malformed(f"there is no {closing!r} at {near(text, position)}")
    return position


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


GEMMA4 = CallFormat(
    "gemma4",
    (_OPEN, "<|tool_response>"),
    re.escape(_OPEN),
    _read,
    _begin,
    thinking=("<|channel>thought", "<channel|>"),
    result_opening="<|tool_response>",
)
