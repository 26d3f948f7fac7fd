"""`Completion`: a sampled turn that answers a request."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentloop.engines.base import FinishReason, Generation
from agentloop.gateway.turns.messages import call_of
from agentloop.gateway.turns.requests import ModelRequest
from agentloop.types.messages import Message, ParsedTurn, ToolCall, UnfinishedCall

ClientCall = ToolCall | UnfinishedCall
"""A call that a client gets."""


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
    def calls(self) -> list[ClientCall]:
        return calls_for_clients(self.parsed)


def text_for_clients(parsed: ParsedTurn) -> str:
    """Return the text of a turn. A malformed call that no stream has begun to send is text, as the model wrote it."""
    unread = [call.raw for call in parsed.calls if not isinstance(call, ClientCall)]
    return "\n".join(filter(None, [parsed.content, *unread]))


def calls_for_clients(parsed: ParsedTurn) -> list[ClientCall]:
    """Return the calls of a turn, with those that a stream has begun to send and that are malformed."""
    return [call for call in parsed.calls if isinstance(call, ClientCall)]


def arguments_for_clients(call: ClientCall) -> str:
    """Return the arguments of a call as JSON; of an unfinished call, their beginning."""
    return call.arguments if isinstance(call, UnfinishedCall) else json.dumps(call.arguments, ensure_ascii=False)


def message_of(parsed: ParsedTurn) -> Message:
    """Return the assistant message of a turn as its client sees it."""
    message = parsed.message() | {"content": text_for_clients(parsed)}
    if calls := calls_for_clients(parsed):
        message["tool_calls"] = [call_of(call.name, call.arguments, call.id) for call in calls]
    return message
