"""`Renderer`: the interface between messages and token ids of one model family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentloop.rendering.formats.base import ToolSchemas
from agentloop.types.messages import Message, ParsedTurn

if TYPE_CHECKING:
    from agentloop.vision.processor import ImageProcessor

__all__ = ["Continuation", "Renderer", "ToolSchemas"]


@dataclass(slots=True)
class Continuation:
    """Token ids that follow a sampled turn in the stream."""

    closing: list[int]
    """Tokens of the template after the assistant turn that were not sampled (segment kind `template`).

    They are the newline after <|im_end|>, or the end-of-turn token itself if the turn was cut.
    """
    observation: list[int]
    """The new messages and the generation prompt of the next turn (segment kind `observation`)."""


class Renderer(Protocol):
    """Converts between messages and token ids; stateless except for caches, so all episodes can share one."""

    stop_token_ids: tuple[int, ...]
    """Ids that end an assistant turn."""
    stop_strings: tuple[str, ...]
    """Texts that also end an assistant turn; usually none."""
    vision: ImageProcessor | None
    """Image processor of the model; None if it has no vision tower."""

    def render_prompt(self, messages: Sequence[Message], tools: ToolSchemas = ()) -> list[int]:
        """Return the ids of the first prompt, with the generation prompt at its end.

        An image occupies all its tokens; `vision.place` finds them. Raises `UserError` for messages that the chat
        template refuses, and for images without a place.
        """
        ...

    def render_continuation(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: ToolSchemas = ()
    ) -> Continuation:
        """Return the ids that follow the turn `sampled` when `messages` (tool results or user messages) answer it.

        The cost depends on the new messages only, not on the history. Raises `UserError` if the template is not
        prefix-stable.
        """
        ...

    def parse(
        self,
        sampled: Sequence[int],
        *,
        complete: bool = True,
        over: bool = True,
        tools: ToolSchemas = (),
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        """Parse a sampled turn into content, thinking and calls.

        With `complete=False` (cut by length) it has no calls. With `over=False` (sampling goes on) text that may become
        a call is omitted, except for half a tag at its end. `tools` gives the types of arguments to formats whose
        values are raw text (qwen3_coder). The id of a call is `call_id_prefix` and its number in the turn.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text without special tokens, for counting and truncation."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        ...
