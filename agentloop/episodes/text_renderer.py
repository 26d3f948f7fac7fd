"""`TextRenderer`: a renderer whose tokens are characters, for episodes without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.base import Continuation, Progress, ToolSchemas
from agentloop.rendering.formats.json_calls import HERMES
from agentloop.rendering.formats.turn_form import TurnForm
from agentloop.rendering.parsing import TurnParser
from agentloop.types.grammar import Grammar
from agentloop.types.messages import Message, ParsedTurn, text_of

END = 0x110000
"""Id that ends a turn: the first that is not a code point."""
_PARSER = TurnParser(HERMES)


class TextRenderer:
    """Renders text as code points; images take no tokens."""

    stop_token_ids: tuple[int, ...] = (END,)
    stop_strings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.vision: Any = self

    def render_prompt(self, messages: Sequence[Message], tools: ToolSchemas = ()) -> list[int]:
        return self.encode("".join(text_of(message.get("content", "")) for message in messages))

    def render_continuation(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: ToolSchemas = ()
    ) -> Continuation:
        return Continuation([], self.render_prompt(messages))

    def parse(self, sampled: Sequence[int], **options: Any) -> ParsedTurn:
        return _PARSER.parse(self.decode(sampled[:-1]), **options)

    def parse_stream(self, sampled: Sequence[int], progress: Progress, **options: Any) -> ParsedTurn:
        return _PARSER.parse_stream(self.decode([each for each in sampled if each != END]), progress, **options)

    def turn_grammar(self, form: TurnForm, tools: ToolSchemas = ()) -> Grammar:
        raise UserError("Turns of text cannot be constrained.")

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def num_tokens(self, image: Any) -> int:
        return 0

    def see(self, image: Any) -> Any:
        return image

    def place(self, ids: Sequence[int], images: Sequence[Any], start: int) -> Sequence[Any]:
        return images
