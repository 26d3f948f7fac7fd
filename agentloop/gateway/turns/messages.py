"""Helpers that all dialects use to read messages, and the keys that identify a conversation."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

from agentloop.errors import UserError
from agentloop.gateway.turns.errors import ApiError
from agentloop.types.messages import Content, ImagePart, Message, TextPart, text_of
from agentloop.vision.decoding import ImageBudget

_sorted_json = json.JSONEncoder(sort_keys=True).encode
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_DEEPEST = 200
"""Levels of arguments, each of which needs frames of Python's stack wherever they are read."""
_MAX_SAFE_INTEGER = 2**53
"""Integer above which JavaScript rounds."""


class Images:
    """Loads the images of one request, up to a total number of pixels."""

    def __init__(self) -> None:
        self._budget = ImageBudget()

    def part(self, url: Any, where: str) -> ImagePart:
        """Return the image of a data: URI. Raises `ApiError` for anything else."""
        if not isinstance(url, str) or not url.startswith("data:"):
            raise ApiError(
                400, f"An image of {where} must be a data: URI or base64, as the gateway fetches nothing.", param=where
            )
        try:
            return {"type": "image", "image": self._budget.load(url)}
        except UserError as error:
            raise ApiError(400, f"{where}: {error}", param=where) from error


def joined(parts: Sequence[TextPart | ImagePart], between: str = "") -> Content:
    """Return parts as the content of a message: one text if there are no images, else a list."""
    if all(part["type"] == "text" for part in parts):
        return between.join(part["text"] for part in parts if part["type"] == "text")
    return list(parts)


def with_one_system_message(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with at most one system message, the first, as most chat templates require.

    System messages at the beginning become one. Later ones, which some agents write, become messages of the user.
    """
    begun = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    first: list[Message] = []
    if begun:
        first = [
            {"role": "system", "content": "\n\n".join(text_of(message["content"]) for message in messages[:begun])}
        ]
    later = (message | {"role": "user"} if message["role"] == "system" else message for message in messages[begun:])
    return [*first, *cast("Iterable[Message]", later)]


def call_of(name: str, arguments: Any, call_id: Any) -> dict[str, Any]:
    """Return a call in the form that messages contain."""
    return {"id": str(call_id or ""), "type": "function", "function": {"name": name, "arguments": arguments}}


def text_in(raw: Mapping[str, Any], field: str, where: str) -> str:
    """Return the text in this field of a message or part. Raises an `ApiError` if it holds no text."""
    text = raw.get(field)
    if not isinstance(text, str):
        raise ApiError(400, f"`{field}` in {where} must be a text.", param=where)
    return text


def name_of(raw: Mapping[str, Any], where: str) -> str:
    """Return the name of a tool or of a call. Raises an `ApiError` if it has none."""
    name = raw.get("name")
    if isinstance(name, str):
        return name
    is_of_chat = isinstance(raw.get("function"), Mapping)  # chat completions has the name in there
    fix = "Put the fields of `function` next to `type`." if is_of_chat else "Give it one, as a text."
    raise ApiError(400, f"{where} has no `name`. {fix}", param=where)


def names_of_calls(messages: Iterable[Message]) -> dict[str, str]:
    """Return the name of the tool of each call, by the id of the call."""
    return {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}


def objects_of(raw: Any, field: str, where: str) -> list[Mapping[str, Any]]:
    """Return a list of objects; None is an empty one. Raises an `ApiError` that names the field."""
    items = [] if raw is None else raw
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise ApiError(400, f"`{field}` of {where} must be a list of objects.", param=where)
    return items


def arguments_of(raw: Any) -> Any:
    """Return the object in a JSON text, as chat templates require; the text itself if it holds no object.

    Text that is nested deeper than `_DEEPEST` levels stays text, too.
    """
    if not isinstance(raw, str):
        return raw or {}
    if raw.count("[") + raw.count("{") > _DEEPEST and _depth(raw) > _DEEPEST:
        return raw
    try:
        value = json.loads(raw or "{}")
    except ValueError:
        return raw
    return value if isinstance(value, dict) else raw


def _depth(text: str) -> int:
    """Return how deep JSON is nested."""
    steps = (1 if character in "[{" else -1 for character in _STRING.sub("", text) if character in "[]{}")
    return max(accumulate(steps), default=0)


def key_of_tools(tools: str) -> bytes:
    """Return the key of an empty conversation with these tools, as text."""
    return hashlib.blake2b(tools.encode(), digest_size=16).digest()


def conversation_keys(messages: Sequence[Message], before: bytes) -> list[bytes]:
    """Return a key of the conversation up to each message; `before` is the key before the first one.

    Conversations with the same meaning have one key: clients may omit empty content, send text as a string or as
    parts, and write numbers in arguments differently. Thinking is not part of the key: many clients omit it when
    they send a turn back.
    """
    keys = []
    for message in messages:
        digest = hashlib.blake2b(before, digest_size=16)
        content = message.get("content") or ""
        is_answer = message["role"] == "assistant"
        meaning: list[Any] = [message["role"], message.get("tool_call_id"), message.get("name")]
        meaning.append([_meaning_of_call(call) for call in message.get("tool_calls", ())])
        if isinstance(content, str):
            meaning.append(content.strip() if is_answer else content)
        else:
            for part in content:
                if part["type"] == "text":
                    meaning.append(part["text"])
                else:
                    image = part["image"]
                    pixels = hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest()
                    meaning.append([image.size, image.mode, pixels])
        digest.update(_sorted_json(meaning).encode())
        before = digest.digest()
        keys.append(before)
    return keys


def _meaning_of_call(call: Mapping[str, Any]) -> list[Any]:
    function = call["function"]
    return [call["id"], function["name"], _numbers_of_javascript(arguments_of(function["arguments"]))]


def _numbers_of_javascript(value: Any) -> Any:
    """Return JSON as a client in JavaScript would send it back: 1.0 is 1 there, and large integers are rounded."""
    if isinstance(value, Mapping):
        return {key: _numbers_of_javascript(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers_of_javascript(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, int) and abs(value) <= _MAX_SAFE_INTEGER:
        return value
    try:
        rounded = float(value)
    except OverflowError:
        return None
    if not math.isfinite(rounded):
        return None
    return int(rounded) if rounded.is_integer() else rounded
