"""Calls as XML-like tags with raw values: Qwen3-Coder and its relatives.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

Values are text; the tool's JSON Schema says what they are (`schema_values`).
"""

from __future__ import annotations

import re
from typing import Any

from agentloop.rendering.base import ToolSchemas
from agentloop.rendering.parsing import CallFormat, CallReader, end_of_bad
from agentloop.rendering.schema_values import typed_value

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_HOW = (
    "Write each call as <tool_call>\n<function=TOOL>\n<parameter=KEY>\nvalue\n</parameter>\n</function>\n</tool_call>."
)
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")
_FUNCTION_END = re.compile(r"\s*</function>\s*")
# The end of a value is a closing tag behind which the call goes on as a call does: code may contain the tag itself.
_PARAMETER_END = re.compile(
    r"</parameter>\s*(?=<parameter=[^<>\n]+>|</function>\s*(?:</tool_call>|<function=|<tool_call>|\Z))"
)


class _Malformed(Exception):
    """What is wrong, in words for the model."""


def _read(reader: CallReader, start: int) -> int:
    """All functions of one tag; the tag itself may be missing."""
    text = reader.text
    tagged = text.startswith(_OPEN, start)
    position = start + len(_OPEN) if tagged else start
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        while match := _FUNCTION.match(text, position):
            position = match.end()
            position = _function(text, position, match[1].strip(), reader.tools, found)
        if not found:
            raise _Malformed("there is no <function=TOOL> in it")
        rest = text[position : position + len(_CLOSE)]
        if rest == _CLOSE:
            position += len(_CLOSE)
        elif tagged and rest and not text.startswith(_OPEN, position):
            raise _Malformed(f"</tool_call> is missing before {text[position : position + 40]!r}")
    except _Malformed as error:
        end = end_of_bad(text, position, _OPEN, _CLOSE)
        reader.refuse(f"This tool call cannot be read: {error}. {_HOW}", text[start:end])
        return end
    for name, arguments in found:
        reader.add(name, arguments)
    return position


def _function(text: str, position: int, name: str, tools: ToolSchemas, found: list[tuple[str, dict[str, Any]]]) -> int:
    """Read the parameters of one function; the index behind it."""
    arguments: dict[str, Any] = {}
    while match := _PARAMETER.match(text, position):
        key = match[1].strip()
        end = _PARAMETER_END.search(text, match.end())
        if end is None:
            raise _Malformed(f"parameter {key!r} is not closed by </parameter>, or the function not by </function>")
        if key in arguments:
            raise _Malformed(f"parameter {key!r} is given twice")
        arguments[key] = typed_value(text[match.end() : end.start()], name, key, tools)
        position = end.end()
    close = _FUNCTION_END.match(text, position)
    if close is None:
        raise _Malformed(f"function {name!r} is not closed by </function>: {text[position : position + 40]!r}")
    found.append((name, arguments))
    return close.end()


QWEN3_CODER = CallFormat("qwen3_coder", "<tool_call>|<function=", _read)
