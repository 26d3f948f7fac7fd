"""Calls of Llama 3: the whole turn is JSON, `{"name": "NAME", "parameters": {...}}`, behind <|python_tag|> or not."""

from __future__ import annotations

from typing import Any

from agentloop.rendering.formats.json_calls import Malformed, json_at, named_call, skip_space
from agentloop.rendering.parsing import CallFormat, CallReader
from agentloop.types.messages import ParsedTurn

_TAG = "<|python_tag|>"
_HOW = 'Write a call as {"name": "TOOL", "parameters": {...}}, with nothing around it.'


def _read_turn(reader: CallReader, complete: bool) -> ParsedTurn:
    """A turn of objects that name a function is calls; any other JSON is an answer, and so is JSON behind words."""
    content, tag, code = reader.text.partition(_TAG)
    if not tag:
        content, code = "", reader.text
    if not complete or not (tag or code.lstrip().startswith(("{", "["))):
        return ParsedTurn(reader.text.strip())
    try:
        calls = _calls(code, only_calls=bool(tag))
    except Malformed as error:
        # Without the tag it is a call all the same where it says that it is to be one.
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
    """The objects of a turn, divided by white space or semicolons. Raises `Malformed`."""
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
