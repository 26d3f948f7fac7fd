"""Calls as JSON objects, or lists of them, between two tags: Hermes, Qwen2.5, Qwen3, Nemotron, Phi and others."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from agentloop.rendering.formats.base import Begun, CallFormat, CallReader, end_of_bad
from agentloop.rendering.formats.beginnings import begun_named
from agentloop.rendering.formats.strict_json import Malformed, arguments_of, json_at, kind_of, near, skip_space


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


def named_call(value: Any) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of a decoded object. Raises `Malformed`."""
    if not isinstance(value, dict):
        raise Malformed(f"the JSON is {kind_of(value)}, not an object")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed('the object has no "name"')
    return name, arguments_of(value["arguments"] if "arguments" in value else value.get("parameters", {}))


def _begin(reader: CallReader, start: int, *, opening: str) -> Begun | None:
    position = skip_space(reader.text, start + len(opening))
    if reader.text.startswith("[", position):
        position = skip_space(reader.text, position + 1)
    return begun_named(reader.text, position)


def _format(name: str, opening: str, closing: str) -> CallFormat:
    begin = partial(_begin, opening=opening)
    return CallFormat(name, (opening,), re.escape(opening), between(opening, closing), begin)


HERMES = _format("hermes", "<tool_call>", "</tool_call>")
NEMOTRON = _format("nemotron", "<TOOLCALL>", "</TOOLCALL>")
PHI = _format("phi", "<|tool_call|>", "<|/tool_call|>")
