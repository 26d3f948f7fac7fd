"""`Memory`: the answers and calls of an episode that its later requests may refer to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentloop.gateway.turns.messages import arguments_of
from agentloop.types.messages import Message, ToolCall, UnfinishedCall


@dataclass(slots=True, frozen=True)
class Kept:
    """A conversation that later requests may continue without sending it."""

    messages: list[Message]
    options: Any
    """The `options` of its last request, which only the dialect reads."""


@dataclass(slots=True)
class Memory:
    """Conversations and calls of one episode."""

    conversations: dict[str, Kept] = field(default_factory=dict)
    """Conversations, each by the name of its last answer."""
    _arguments: dict[str, dict[str, Any] | str] = field(default_factory=dict)
    """The sampled arguments of each call, by its id; of an unfinished call, the text that its client got."""

    def add(self, calls: Iterable[ToolCall | UnfinishedCall]) -> None:
        self._arguments |= {call.id: call.arguments for call in calls}

    def as_sampled(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with the sampled arguments of calls.

        Clients add default arguments to calls, and complete the arguments of unfinished ones.
        """
        return [
            message | {"tool_calls": [self._call_as_sampled(call) for call in message["tool_calls"]]}
            if "tool_calls" in message
            else message
            for message in messages
        ]

    def _call_as_sampled(self, call: dict[str, Any]) -> dict[str, Any]:
        sampled = self._arguments.get(call["id"])
        if isinstance(sampled, str):
            return call | {"function": call["function"] | {"arguments": sampled}}
        sent = arguments_of(call["function"]["arguments"])
        if sampled is None or not isinstance(sent, dict) or not sampled.keys() < sent.keys():
            return call
        kept = {name: sent[name] for name in sampled}
        return call | {"function": call["function"] | {"arguments": kept}}
