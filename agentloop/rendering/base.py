"""What the loop asks of a renderer: messages to token ids and back, for one model family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agentloop.types.messages import Message, ParsedTurn

if TYPE_CHECKING:
    from agentloop.vision.processor import ImageProcessor

ToolSchemas = Sequence[dict[str, Any]]
"""OpenAI-style `{"type": "function", "function": {...}}` each. Identity matters: renders are cached by `id()` of a
tuple that the environment's toolset keeps, so that a thousand episodes render their tools once."""


@dataclass(slots=True, frozen=True)
class Continuation:
    """What follows a sampled turn in the token stream."""

    closing: list[int]
    """What the template puts behind the assistant turn and the model did not sample (segment kind `template`): the
    newline after <|im_end|>, or the end-of-turn token itself where the turn was cut."""
    observation: list[int]
    """The new messages and the generation prompt of the next turn (segment kind `observation`)."""


class Renderer(Protocol):
    """Messages <-> token ids. Stateless between calls except for caches; safe to share by all episodes."""

    stop_token_ids: tuple[int, ...]
    """Ids that end an assistant turn."""
    stop_strings: tuple[str, ...]
    """Texts that end one, too; mostly none."""
    vision: ImageProcessor | None
    """What makes of a picture what the model sees; None for models that see none."""

    def render_prompt(self, messages: Sequence[Message], tools: ToolSchemas = ()) -> list[int]:
        """The first prompt, with the generation prompt at its end. A picture takes the place of all its tokens; see
        `vision.place`. Raises `UserError` for messages that the chat template refuses, and pictures without a place."""
        ...

    def render_continuation(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: ToolSchemas = ()
    ) -> Continuation:
        """What follows the turn `sampled` when `messages` (tool results or user messages) answer it. Costs what the
        new messages cost, however long the history. Raises `UserError` where the template is not prefix-stable."""
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
        """Read a sampled turn. With `complete=False` (cut by length) it never has calls. With `over=False` (more of it
        is sampled) text is left out that may turn out to be a call, but for half a tag at its end.

        `tools` gives the types of arguments to formats that write values without them (qwen3_coder). The ids of the
        calls are `call_id_prefix` and their number in the turn.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Plain text to ids, no special tokens added; used to count and to truncate."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Ids to text, special tokens shown."""
        ...
