"""Cut the content of a tool result to a number of tokens: cut texts in the middle, omit images that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentloop.episodes.truncation import truncate_middle
from agentloop.errors import UserError
from agentloop.types.messages import Content, ImagePart, TextPart

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer
    from agentloop.vision.processor import ImageProcessor


async def fit_content(content: Content, max_tokens: int, renderer: Renderer) -> Content:
    """Return `content` with at most `max_tokens` tokens of images and texts together, counting each text separately.

    Images get their tokens first, in order; texts share the rest, in order. A note with the reason replaces an image
    that does not fit or that the model cannot process; notes do not count.
    """
    if isinstance(content, str):
        return await truncate_middle(content, max_tokens, renderer)
    if len(content) == 1 and content[0]["type"] == "text":
        return [_text(await truncate_middle(content[0]["text"], max_tokens, renderer))]
    fitted: list[TextPart | ImagePart] = []
    notes: set[int] = set()
    left = max_tokens
    for part in content:
        if part["type"] == "image":
            tokens, refusal = _measure(part["image"], renderer.vision, left)
            if refusal:
                notes.add(len(fitted))
                part = _text(refusal)
            left -= tokens
        fitted.append(part)
    for index, part in enumerate(fitted):
        if part["type"] == "text" and index not in notes:
            text = await truncate_middle(part["text"], left, renderer) if left > 0 else ""
            left -= len(renderer.encode(text))
            fitted[index] = _text(text)
    return fitted


def _text(text: str) -> TextPart:
    return {"type": "text", "text": text}


def _measure(image: Any, vision: ImageProcessor | None, left: int) -> tuple[int, str]:
    """Return (number of tokens, "") for an image, or (0, note with the reason to omit it)."""
    if vision is None:
        return 0, "[Image omitted: this model takes no images.]"
    try:
        tokens = vision.num_tokens(image)
    except UserError as error:
        return 0, f"[Image omitted: {error}]"
    if tokens > left:
        width, height = image.size
        return 0, (
            f"[Image of {width} x {height} pixels omitted: it takes {tokens} tokens, but only {left} are left. Request "
            "a smaller one.]"
        )
    return tokens, ""
