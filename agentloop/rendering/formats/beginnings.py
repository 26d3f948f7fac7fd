"""Read the beginning of a call, for streams that send its arguments while they are sampled.

Arguments are written as `json.dumps` writes them at the end. Texts are sent as they are sampled; a number, a list or an
object is sent when the next argument begins, because `1` may become `1.5`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentloop.rendering.formats.base import Begun
from agentloop.rendering.formats.strict_json import Malformed, json_at, skip_space

_OPEN = object()
"""Value that may change when more text follows."""
_CHARACTERS = re.compile(r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
"""Whole characters of a JSON string."""


def beginning(pairs: Mapping[str, Any], key: str | None = None, text: str = "") -> str:
    """Return the beginning of an object with these pairs; `text` is the beginning of the text at `key`."""
    items = [f"{_json(name)}: {_json(value)}" for name, value in pairs.items()]
    if key is not None:
        items.append(f"{_json(key)}: {_json(text)[:-1]}")
    return "{" + ", ".join(items)


def begun_object(text: str, position: int) -> str | None:
    """Return as much of the JSON object at an index as is certain; None if no object begins there."""
    if not text.startswith("{", position):
        return None
    pairs: dict[str, Any] = {}
    for key, start, value in _members(text, position):
        if key in pairs:
            break
        if value is not _OPEN:
            pairs[key] = value
        elif text.startswith('"', start):
            return beginning(pairs, key, _begun_string(text, start))
    return beginning(pairs)


def begun_named(text: str, position: int) -> Begun | None:
    """Return the beginning of the call `{"name": "TOOL", "arguments": {...}}` at an index.

    None if the keys have another order.
    """
    if not text.startswith("{", position):
        return None
    name = ""
    for key, start, value in _members(text, position):
        if key == "name" and isinstance(value, str):
            name = value
        elif key == "arguments" and name:
            arguments = begun_object(text, start)
            return None if arguments is None else Begun(name, arguments)
    return None


def without_begun(text: str, closing: str) -> str:
    """Return a text up to a closing tag, or without an end that may become one."""
    whole = text.find(closing)
    if whole >= 0:
        return text[:whole]
    return without_beginning_of(closing, text)


def without_beginning_of(mark: str, text: str) -> str:
    """Return a text without an end that may become `mark`."""
    begun = next((n for n in range(min(len(mark), len(text)), 0, -1) if text.endswith(mark[:n])), 0)
    return text[: len(text) - begun]


def _members(text: str, position: int) -> Iterator[tuple[str, int, Any]]:
    """Yield key, index of the value and value of each member of an object; the value of the last one may be `_OPEN`."""
    while text.startswith(("{", ","), position):
        position = skip_space(text, position + 1)
        try:
            key, position = json_at(text, position)
        except Malformed:
            return
        position = skip_space(text, position)
        if not isinstance(key, str) or not text.startswith(":", position):
            return
        start = skip_space(text, position + 1)
        try:
            value, position = json_at(text, start)
            position = skip_space(text, position)
            is_certain = text.startswith((",", "}"), position)
        except Malformed:
            is_certain = False
        yield key, start, value if is_certain else _OPEN
        if not is_certain:
            return


def _begun_string(text: str, start: int) -> str:
    """Return the characters of the JSON string at an index, up to its end or the first one that is not whole."""
    found = _CHARACTERS.match(text, start + 1)
    assert found is not None
    decoded: str = json.loads(f'"{found[0]}"')
    try:
        decoded.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        return decoded[: error.start]
    return decoded


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
