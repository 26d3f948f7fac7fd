"""Calls of Llama 3: the whole turn is JSON, `{"name": "NAME", "parameters": {...}}`, with or without <|python_tag|>."""

from __future__ import annotations

from typing import Any

from agentloop.rendering.formats.base import CallFormat, CallReader
from agentloop.rendering.formats.json_calls import named_call
from agentloop.rendering.formats.strict_json import Malformed, json_at, skip_space
from agentloop.types.messages import ParsedTurn

_TAG = "<|python_tag|>"
_HOW = 'Write a call as {"name": "TOOL", "parameters": {...}}, with nothing around it.'


def _read_turn(reader: CallReader, complete: bool) -> ParsedTurn:
    """Read a turn: objects that name a function are calls; other JSON, and JSON after other text, is content."""
    content, tag, code = reader.text.partition(_TAG)
    if not tag:
        content, code = "", reader.text
    if not complete or not (tag or code.lstrip().startswith(("{", "["))):
        return ParsedTurn(reader.text.strip())
    try:
        calls = _calls(code, only_calls=bool(tag))
    except Malformed as error:
        # Without the tag, malformed JSON with the keys of a call still counts as a call.
        if not tag and not ('"name"' in code and ('"parameters"' in code or '"arguments"' in code)):
            return ParsedTurn(reader.text.strip())
        reader.refuse(f"This tool call cannot be read: {error}. {_HOW}", code)
        return ParsedTurn(content.strip(), None, tuple(reader.calls))
    if not calls:
        return ParsedTurn(reader.text.strip())
    for call in calls:
        reader.add(*named_call(call))
    return ParsedTurn(content.strip(), None, tuple(reader.calls))


def _calls(code: str, *, only_calls: bool) -> list[dict[str, Any]]:
    """Return the objects of a turn, separated by white space or semicolons. Raises `Malformed`."""
    position, found = skip_space(code, 0), []
    while position < len(code):
        value, position = json_at(code, position)
        found += value if isinstance(value, list) else [value]
        position = skip_space(code, position)
        if code.startswith(";", position):
            position = skip_space(code, position + 1)
    are_calls = all(
        isinstance(item, dict) and "name" in item and ("parameters" in item or "arguments" in item) for item in found
    )
    if only_calls and not (are_calls and found):
        raise Malformed(f"it names no function, or has no parameters: {code[:40]!r}")
    if not are_calls:
        return []
    for item in found:
        named_call(item)
    return found


LLAMA3 = CallFormat(
    "llama3",
    ("<|start_header_id|>", "<|eot_id|>", '"parameters"'),
    read_turn=_read_turn,
    undecided=r"\s*[\[{]",
    ends=("<|eom_id|>",),
)
