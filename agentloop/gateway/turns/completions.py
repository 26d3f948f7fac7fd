"""`Completion`: a sampled turn that answers a request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentloop.engines.base import FinishReason, Generation
from agentloop.gateway.turns.requests import ModelRequest
from agentloop.types.messages import InvalidCall, Message, ParsedTurn, ToolCall


@dataclass(slots=True, frozen=True)
class Completion:
    """A sampled turn that answers a request."""

    request: ModelRequest
    prompt: Sequence[int]
    generation: Generation
    parsed: ParsedTurn
    name: str
    stopped_by: str | None = None
    """The stop string of the request that ended the turn."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def is_cut(self) -> bool:
        """Whether a token limit ended the turn."""
        return self.generation.finish_reason is FinishReason.LENGTH

    @property
    def text(self) -> str:
        return text_for_clients(self.parsed)

    @property
    def calls(self) -> list[ToolCall]:
        return [call for call in self.parsed.calls if isinstance(call, ToolCall)]


def text_for_clients(parsed: ParsedTurn) -> str:
    """Return the text of a turn. A malformed call is text, as the model wrote it."""
    unread = [call.raw for call in parsed.calls if isinstance(call, InvalidCall)]
    return "\n".join(filter(None, [parsed.content, *unread]))


def message_of(parsed: ParsedTurn) -> Message:
    """Return the assistant message of a turn as its client sees it."""
    return parsed.message() | {"content": text_for_clients(parsed)}
