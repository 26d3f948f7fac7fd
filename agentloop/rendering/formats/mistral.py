"""Calls of Mistral: a JSON list after one token, or, since version 11 of its tokenizer, a name and arguments per call.

[TOOL_CALLS][{"name": "NAME", "arguments": {...}}] [TOOL_CALLS]NAME[ARGS]{...}[TOOL_CALLS]NAME[ARGS]{...}
"""

from __future__ import annotations

import re
import zlib

from agentloop.rendering.formats.base import Begun, CallFormat, CallReader, end_of_bad
from agentloop.rendering.formats.beginnings import begun_object
from agentloop.rendering.formats.json_calls import named_call
from agentloop.rendering.formats.strict_json import Malformed, arguments_of, json_at, near, skip_space

_OPEN = "[TOOL_CALLS]"
_HEADER = re.compile(
    r"\s*(?P<name>[^\s\[\]{}]++)\s*+(?:\[CALL_ID\]\s*+(?P<id>[^\s\[\]{}]*+))?\s*+(?:\[ARGS\])?\s*+(?=\{)"
)
_ID = re.compile(r"[a-zA-Z0-9]{9}")
_HOW = f'Write calls as {_OPEN}[{{"name": "TOOL", "arguments": {{...}}}}], or as {_OPEN}TOOL[ARGS]{{...}}.'


def _read(reader: CallReader, start: int) -> int:
    text = reader.text
    position = start + len(_OPEN)
    header = _HEADER.match(text, position)
    try:
        if header:
            value, position = json_at(text, header.end())
            calls = [(header["name"], arguments_of(value), header["id"])]
        else:
            value, position = json_at(text, skip_space(text, position))
            calls = [(*named_call(item), item.get("id")) for item in (value if isinstance(value, list) else [value])]
        if not calls:
            raise Malformed("its list has no calls")
        position = skip_space(text, position)
        if position < len(text) and not text.startswith(_OPEN, position):
            raise Malformed(f"there is text after the JSON: {near(text, position)}")
    except Malformed as error:
        end = end_of_bad(text, position, _OPEN, "")
        reader.refuse(
            f"This tool call cannot be read: {error}. {_HOW}", text[start:end], header["name"] if header else ""
        )
        return end
    for name, arguments, call_id in calls:
        reader.add(name, arguments, _valid_id(call_id))
    return position


def _begin(reader: CallReader, start: int) -> Begun | None:
    """Read the beginning of a call with a header: in a list, the id of a call follows its arguments."""
    header = _HEADER.match(reader.text, start + len(_OPEN))
    arguments = begun_object(reader.text, header.end()) if header else None
    if header is None or arguments is None:
        return None
    return Begun(header["name"], arguments, _valid_id(header["id"]))


def _valid_id(call_id: object) -> str | None:
    return call_id if isinstance(call_id, str) and _ID.fullmatch(call_id) else None


def _make_id(call: str) -> str:
    """Return an id of nine digits; the templates accept only ids that match `_ID`."""
    return f"{zlib.crc32(call.encode()):09d}"[-9:]


MISTRAL = CallFormat(
    "mistral", (_OPEN,), re.escape(_OPEN), _read, _begin, thinking=("[THINK]", "[/THINK]"), make_id=_make_id
)
