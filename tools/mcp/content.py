"""Convert MCP content to message content."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from agentloop.errors import UserError
from agentloop.types.messages import Content, ImagePart, TextPart
from agentloop.vision.decoding import ImageBudget


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
        return {"type": "text", "text": str(item.get("text", ""))}
    if kind == "image":
        try:
            return {"type": "image", "image": budget.load(base64.b64decode(item.get("data", ""), validate=True))}
        except (binascii.Error, UserError) as error:
            return {"type": "text", "text": f"[an image that cannot be shown: {error}]"}
    if kind == "resource" and isinstance(resource := item.get("resource"), dict) and "text" in resource:
        return {"type": "text", "text": str(resource["text"])}
    if kind == "resource_link":
        return {"type": "text", "text": f"[{item.get('name', 'resource')}: {item.get('uri', '')}]"}
    return {"type": "text", "text": f"[content of type {kind} is not shown]"}
