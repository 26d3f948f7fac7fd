"""`Dialect`: the interface that each file of this folder implements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from agentloop.gateway.turns.completions import Completion
    from agentloop.gateway.turns.deltas import Delta
    from agentloop.gateway.turns.errors import ApiError
    from agentloop.gateway.turns.memory import Memory
    from agentloop.gateway.turns.requests import ModelRequest
    from agentloop.rendering.base import Renderer


KEEP_ALIVE = ": sampling\n\n"
"""A comment of server-sent events, which clients ignore."""


class Events(Protocol):
    """Writes the server-sent events of one answer. Each method returns the text of its events."""

    def begin(self) -> str:
        """Return the events before the first token."""
        ...

    def more(self, index: int, delta: Delta) -> str:
        """Return the events of a part of turn `index`."""
        ...

    def silent(self) -> str:
        """Return the events that tell the client of a long call that the turn goes on."""
        ...

    def end(self, index: int, completion: Completion) -> str:
        """Return the events that end a turn; all its parts were sent."""
        ...

    def close(self, completions: Sequence[Completion]) -> str:
        """Return the events that end the answer."""
        ...

    def failed(self, error: ApiError) -> str:
        """Return the events of an error in the middle of the answer."""
        ...


class Dialect(Protocol):
    """Reads the requests of one API and writes its answers."""

    def read(self, body: bytes, memory: Memory) -> ModelRequest:
        """Read a request of the episode with this memory. Raises `ApiError`."""
        ...

    def whole(self, completions: Sequence[Completion], renderer: Renderer) -> dict[str, Any]:
        """Return the whole answer; a request for several turns has one completion for each."""
        ...

    def events(self, request: ModelRequest, renderer: Renderer) -> Events:
        """Return the writer of a stream."""
        ...

    def error(self, error: ApiError) -> dict[str, Any]:
        """Return the body of an error."""
        ...


def event(data: Mapping[str, Any], *, is_named: bool = True) -> str:
    """Return one server-sent event; most APIs repeat the type of the data as its name."""
    name = f"event: {data['type']}\n" if is_named else ""
    return f"{name}data: {json.dumps(data)}\n\n"
