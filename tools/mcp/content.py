"""Convert MCP content to message content."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from agentloop.types.messages import Content, ImagePart, TextPart
from agentloop.vision.decoding import ImageBudget


def content_of(result: Mapping[str, Any]) -> Content:
    """Return the content of the result of a call, or its structured content as JSON if it has no other."""
    if not result["content"] and result.get("structuredContent") is not None:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    return as_content(result["content"])


def as_content(items: Iterable[Any]) -> Content:
    """Return a string if all items are text, else a list of parts. Content that no model can see becomes a note."""
    budget = ImageBudget()
    parts = [_part(item, budget) for item in items]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts if part["type"] == "text")
    return parts


def _part(item: Any, budget: ImageBudget) -> TextPart | ImagePart:
    kind = item.get("type") if isinstance(item, dict) else None
    if kind == "text":
        return {"type": "text", "text": _text(item, "text")}
    if kind == "image":
        try:
            return {"type": "image", "image": budget.load(base64.b64decode(_text(item, "data"), validate=True))}
        except ValueError as error:  # not base64, or a UserError
            return {"type": "text", "text": f"[an image that cannot be shown: {error}]"}
    if kind == "resource" and isinstance(resource := item.get("resource"), dict) and "text" in resource:
        return {"type": "text", "text": _text(resource, "text")}
    if kind == "resource_link":
        return {"type": "text", "text": f"[{item.get('name', 'resource')}: {item.get('uri', '')}]"}
    return {"type": "text", "text": f"[content of type {kind} is not shown]"}


def _text(item: Mapping[str, Any], key: str) -> str:
    """Return a field as text; some servers send null, or a number."""
    value = item.get(key)
    return "" if value is None else str(value)
