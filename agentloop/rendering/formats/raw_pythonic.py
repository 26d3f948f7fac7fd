"""Calls of LFM2.5: like those of LFM2, but strings between single quotes are raw.

    <|tool_call_start|>[NAME(key='raw text', other=3)]<|tool_call_end|>

Line breaks, quotes and backslashes in a string are literal. So it ends at the first quote after which the call can
continue: with another parameter, another call or the end.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from agentloop.rendering.formats.base import CallFormat, CallReader, ToolSchemas
from agentloop.rendering.formats.pythonic import CLOSE, OPEN, STRING, value_of
from agentloop.rendering.formats.schema_values import parameter_names
from agentloop.rendering.formats.strict_json import Malformed, near

_HOW = f"Write calls as {OPEN}[TOOL(key='text', other=3)]{CLOSE}."
_NAME = r"[\w.\-]{1,256}+"
_CALL = re.compile(rf"\s*+(?P<name>{_NAME})\s*+\(\s*+")
_KEY = re.compile(r"(?P<key>\w{1,256}+)\s*+=\s*+")
_AFTER_VALUE = re.compile(r"\s*+(?:(?P<next>,\s*+)|(?P<end>\)))")
_AFTER_CALL = re.compile(r"\s*+(?:(?P<next>,)|\]?\s*+\Z)")
_PIECES = re.compile(rf"{STRING}|[\[({{]|[\])}}]|,", re.DOTALL)


def _read(reader: CallReader, start: int) -> int:
    text, begin = reader.text, start + len(OPEN)
    close = text.find(CLOSE, begin)
    end = close if close >= 0 else len(text)
    code = text[begin:end].strip().removeprefix("[")
    try:
        calls = _calls(code, reader.tools)
    except Malformed as error:
        end = min(end + len(CLOSE), len(text))
        reader.refuse(f"This tool call cannot be read: {error}. {_HOW}", text[start:end])
        return end
    for name, arguments in calls:
        reader.add(name, arguments)
    return min(end + len(CLOSE), len(text))


def _calls(code: str, tools: ToolSchemas) -> list[tuple[str, dict[str, Any]]]:
    found = []
    position = 0
    while True:
        called = _CALL.match(code, position)
        if called is None:
            raise Malformed(f"no function is called at {near(code, position)}")
        arguments, position = _arguments(code, called.end(), called["name"], tools)
        found.append((called["name"], arguments))
        after = _AFTER_CALL.match(code, position)
        if after is None:
            raise Malformed(f"there is text after the call: {near(code, position)}")
        if not after["next"]:
            return found
        position = after.end()


def _arguments(code: str, position: int, function: str, tools: ToolSchemas) -> tuple[dict[str, Any], int]:
    arguments: dict[str, Any] = {}
    names = "|".join(map(re.escape, parameter_names(function, tools))) or r"\w+"
    goes_on = rf"\s*+(?:,\s*+(?:{names})\s*+=|\)\s*+(?:,\s*+{_NAME}\s*+\(|\]?\s*+\Z))"
    if code.startswith(")", position):
        return arguments, position + 1
    while True:
        key = _KEY.match(code, position)
        if key is None:
            raise Malformed(f"there is no named argument at {near(code, position)}")
        if key["key"] in arguments:
            raise Malformed(f"argument {key['key']!r} is given twice")
        position = key.end()
        quote = code[position : position + 1]
        if quote in ("'", '"') and quote:
            closing = re.compile(rf"{quote}(?={goes_on})").search(code, position + 1)
            if closing is None:
                raise Malformed(f"the text of argument {key['key']!r} is not closed by {quote}")
            arguments[key["key"]] = code[position + 1 : closing.start()]
            position = closing.end()
        else:
            end = _end_of_literal(code, position)
            arguments[key["key"]] = _literal(code[position:end])
            position = end
        after = _AFTER_VALUE.match(code, position)
        if after is None:
            raise Malformed(f"an argument does not end at {near(code, position)}")
        position = after.end()
        if after["end"]:
            return arguments, position


def _end_of_literal(code: str, position: int) -> int:
    """Return the index of the comma or bracket after a literal."""
    depth = 0
    for piece in _PIECES.finditer(code, position):
        if piece[0] in "[({":
            depth += 1
        elif depth == 0 and piece[0] in "])},":
            return piece.start()
        elif piece[0] in "])}":
            depth -= 1
    return len(code)


def _literal(code: str) -> Any:
    try:
        return value_of(ast.parse(code.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Malformed(f"{code[:40]!r} is not a value ({type(error).__name__})") from None


LFM2_5 = CallFormat("lfm2_5", (OPEN, '"\'" + arg_value + "\'"'), re.escape(OPEN), _read)
