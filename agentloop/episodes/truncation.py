"""Cut the middle out of texts that have too many tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.process.offloading import off_loop

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer

MAX_CHARS_PER_TOKEN = 32
"""Texts longer than this times the limit are cut by characters before tokenization: they cannot fit, and tokenizing
megabytes would take seconds."""


async def truncate_middle(text: str, max_tokens: int, renderer: Renderer) -> str:
    """Return `text`, or its beginning and end with a note between them about the missing characters.

    The result, note included, has at most `max_tokens` tokens if it is encoded separately.
    """
    # Byte-level tokenizers produce at most one token per byte, so most results fit without tokenizing.
    if len(text) * 4 <= max_tokens or len(text.encode("utf-8", "surrogatepass")) <= max_tokens:
        return text
    return await off_loop(len(text), _truncate, text, max_tokens, renderer)


def _truncate(text: str, max_tokens: int, renderer: Renderer) -> str:
    max_chars = max_tokens * MAX_CHARS_PER_TOKEN
    if len(text) <= max_chars:
        ids = renderer.encode(text)
        if len(ids) <= max_tokens:
            return text
    else:
        ids = renderer.encode(text[: max_chars // 2]) + renderer.encode(text[-(max_chars // 2) :])
    kept = max_tokens
    while kept > 0:
        head, tail = renderer.decode(ids[: kept - kept // 2]), renderer.decode(ids[len(ids) - kept // 2 :])
        cut = f"{head}\n[... {len(text) - len(head) - len(tail)} characters cut ...]\n{tail}"
        over = len(renderer.encode(cut)) - max_tokens
        if over <= 0:
            return cut
        kept -= over
    return ""
