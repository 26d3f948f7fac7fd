"""Read the messages of OpenAI's API, and compute the keys that identify a conversation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentloop.errors import UserError
from agentloop.gateway.errors import ApiError
from agentloop.types.messages import Content, ImagePart, Message, TextPart
from agentloop.vision.decoding import ImageBudget

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def read_messages(raw: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages as renderers take them. Raises an `ApiError` that names the invalid message."""
    names: dict[str, str] = {}
    images = ImageBudget()
    return [_read(item, f"messages[{index}]", names, images) for index, item in enumerate(raw)]


def _read(raw: Mapping[str, Any], where: str, names: dict[str, str], images: ImageBudget) -> Message:
    """Read a message. `names` maps ids of earlier calls to functions: templates may show them beside the result."""
    role = _ROLES.get(str(raw.get("role")))
    if role is None:
        raise ApiError(400, f"{where} has the role {raw.get('role')!r}; known: {', '.join(_ROLES)}.", param=where)
    message = cast(Message, {"role": role, "content": _content(raw.get("content"), where, images)})
    if reasoning := reasoning_of(raw):
        message["reasoning_content"] = reasoning
    if raw.get("tool_calls"):
        message["tool_calls"] = [_call(call, where) for call in raw["tool_calls"]]
        names.update((call["id"], call["function"]["name"]) for call in message["tool_calls"])
    if role == "tool":
        call_id = str(raw.get("tool_call_id", ""))
        message["tool_call_id"] = call_id
        if name := raw.get("name") or names.get(call_id):
            message["name"] = str(name)
    elif raw.get("name"):
        message["name"] = str(raw["name"])
    return message


def reasoning_of(raw: Mapping[str, Any]) -> str:
    """Return the thinking of an assistant message, under either name that servers use, or an empty text."""
    return str(raw.get("reasoning_content") or raw.get("reasoning") or "")


def _content(raw: Any, where: str, images: ImageBudget) -> Content:
    if raw is None or isinstance(raw, str):
        return raw or ""
    if not isinstance(raw, list):
        raise ApiError(400, f"The content of {where} is neither text nor a list of parts.", param=where)
    parts = [_part(part, where, images) for part in raw]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts if part["type"] == "text")
    return parts


def _part(raw: Any, where: str, images: ImageBudget) -> TextPart | ImagePart:
    kind = raw.get("type") if isinstance(raw, Mapping) else None
    if kind in ("text", "refusal"):
        return {"type": "text", "text": str(raw.get(kind, ""))}
    if kind != "image_url":
        raise ApiError(400, f"A part of {where} has the type {kind!r}; known: text, image_url.", param=where)
    url = raw.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    if not isinstance(url, str) or not url.startswith("data:"):
        raise ApiError(400, f"An image of {where} must be a data: URI, as the gateway fetches nothing.", param=where)
    try:
        return {"type": "image", "image": images.load(url)}
    except UserError as error:
        raise ApiError(400, f"{where}: {error}", param=where) from error


def _call(raw: Any, where: str) -> dict[str, Any]:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ApiError(400, f"A tool call of {where} has no function with a name.", param=where)
    called = {"name": function["name"], "arguments": _arguments(function.get("arguments"))}
    return {"id": str(raw.get("id", "")), "type": "function", "function": called}


def _arguments(raw: Any) -> Any:
    """Return the object in a JSON text, as templates want it; the text itself if it has none."""
    if not isinstance(raw, str):
        return raw or {}
    try:
        value = json.loads(raw or "{}")
    except ValueError:
        return raw
    return value if isinstance(value, dict) else raw


def key_of_tools(tools: str) -> bytes:
    """Return the key of an empty conversation with these tools, as text."""
    return hashlib.blake2b(tools.encode(), digest_size=16).digest()


def conversation_keys(raw: Sequence[Mapping[str, Any]], before: bytes) -> list[bytes]:
    """Return a key of the conversation up to each message; `before` is the key before the first one.

    Conversations with the same meaning have one key: empty content may be None or omitted, text may be a string or
    parts, and arguments are compared as JSON. Thinking is not part of the key: many clients omit it when they send a
    turn back.
    """
    keys = []
    for message in raw:
        meaning = json.dumps(_meaning(message), sort_keys=True)
        before = hashlib.blake2b(before + meaning.encode(), digest_size=16).digest()
        keys.append(before)
    return keys


def _meaning(raw: Mapping[str, Any]) -> list[Any]:
    calls = [
        [call.get("id"), call.get("function", {}).get("name"), _arguments(call.get("function", {}).get("arguments"))]
        for call in raw.get("tool_calls") or ()
    ]
    role = str(raw.get("role"))
    return [
        _ROLES.get(role, role),
        _meaning_of_content(raw.get("content")),
        calls,
        raw.get("tool_call_id"),
        raw.get("name"),
    ]


def _meaning_of_content(content: Any) -> Any:
    if not isinstance(content, list):
        return content or ""
    if all(part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return content
