"""`Renderer`: the interface between messages and token ids of one model family."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentloop.rendering.formats.base import Progress, ToolSchemas
from agentloop.rendering.formats.turn_form import TurnForm
from agentloop.types.grammar import Grammar
from agentloop.types.messages import Message, ParsedTurn

if TYPE_CHECKING:
    from agentloop.vision.processor import ImageProcessor

__all__ = ["Continuation", "Progress", "Renderer", "ToolSchemas"]


@dataclass(slots=True)
class Continuation:
    """Token ids that follow a sampled turn in the stream."""

    closing: list[int]
    """Tokens that the template adds after the assistant turn (segment kind `template`).

    These are the newline after <|im_end|>, or the end-of-turn token itself if the turn was cut.
    """
    observation: list[int]
    """The new messages and the generation prompt of the next turn (segment kind `observation`)."""


class Renderer(Protocol):
    """Converts between messages and token ids. It has no state except caches, so all episodes can share one."""

    stop_token_ids: tuple[int, ...]
    """Ids that end an assistant turn."""
    stop_strings: tuple[str, ...]
    """Strings that also end an assistant turn; usually none."""
    vision: ImageProcessor | None
    """Image processor of the model; None if it has no vision tower."""

    def render_prompt(self, messages: Sequence[Message], tools: ToolSchemas = ()) -> list[int]:
        """Return the ids of the first prompt, with the generation prompt at its end.

        Image tokens are expanded; `vision.place` locates them. Raises `UserError` for messages that the chat template
        rejects, and for images that the template does not show.
        """
        ...

    def render_continuation(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: ToolSchemas = ()
    ) -> Continuation:
        """Return the ids that follow the turn `sampled` when `messages` (tool results or user messages) answer it.

        The cost depends only on the new messages, not on the history. Raises `UserError` if the template is not
        prefix-stable.
        """
        ...

    def parse(
        self,
        sampled: Sequence[int],
        *,
        complete: bool = True,
        tools: ToolSchemas = (),
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        """Parse a sampled turn into content, thinking and calls.

        With `complete=False` (cut by length) it has no calls. Formats whose values are raw text (qwen3_coder) take the
        types of arguments from `tools`. The id of a call is `call_id_prefix` and its index in the turn.
        """
        ...

    def parse_stream(
        self,
        sampled: Sequence[int],
        progress: Progress,
        *,
        tools: ToolSchemas = (),
        eager: Collection[str] = (),
        reads_calls: bool = True,
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        """Parse a turn as the client of a stream reads it: further tokens take nothing back.

        Text that may become a call or a tag is omitted while the turn is sampled. The result differs from that of
        `parse` in three cases: text before a closing think tag that was never opened stays text; calls that ended stay
        calls if the turn is cut; and calls of the tools in `eager` are `UnfinishedCall` while they are sampled, if they
        turn out to be malformed, or if the turn is cut in them.
        """
        ...

    def turn_grammar(self, form: TurnForm, tools: ToolSchemas = ()) -> Grammar:
        """Return the grammar of turns with this form. Raises `UserError` if turns of the model cannot have it."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text without special tokens, for counting and truncation."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        ...
