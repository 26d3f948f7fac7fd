"""What a client is told of a turn while it is sampled; all of it together is the turn as it is read at its end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentloop.gateway.answers import response_message
from agentloop.gateway.requests import ChatRequest
from agentloop.gateway.stops import without_stop
from agentloop.process.offloading import off_loop
from agentloop.types.messages import ParsedTurn

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer

_MAY_BEGIN_A_TAG = re.compile(r"[<\[{`|][^\n]{0,31}$")
"""The end of a text that may turn out to be no text: the tag of a call, or of thinking."""

_READS = 256
"""A turn is read again and again from its start: at each token while it is short, later when it has grown by a 256th,
so that all readings together are of no more than 256 times its tokens."""


class Deltas:
    """Of one turn. Text is told up to where it might become something else: half a tag, half a stop string, half a
    character. A call is told when the turn is over."""

    def __init__(self, request: ChatRequest, renderer: Renderer) -> None:
        self._request, self._renderer = request, renderer
        self._ids: list[int] = []
        self._num_read = 0
        self._told = {"content": "", "reasoning_content": ""}

    async def more(self, ids: Sequence[int]) -> dict[str, str]:
        """What these tokens add; empty where nothing is certain yet."""
        self._ids.extend(ids)
        if (len(self._ids) - self._num_read) * _READS < len(self._ids):
            return {}
        self._num_read = len(self._ids)
        parsed = await off_loop(len(self._ids), self._read, list(self._ids))
        is_over = bool(parsed.calls)  # what stands behind a call comes at the end
        found = {"reasoning_content": parsed.reasoning or "", "content": "" if is_over else parsed.content}
        return self._tell({name: self._certain(text) for name, text in found.items()})

    def rest(self, parsed: ParsedTurn) -> dict[str, str]:
        """What was not told of the whole turn."""
        message: dict[str, Any] = response_message(parsed)
        return self._tell({name: message.get(name) or "" for name in self._told})

    def _read(self, ids: Sequence[int]) -> ParsedTurn:
        request = self._request
        parsed = self._renderer.parse(ids, complete=request.reads_calls, over=False, tools=request.tools)
        return without_stop(parsed, request.stop)

    def _certain(self, text: str) -> str:
        text = _MAY_BEGIN_A_TAG.sub("", text.rstrip("\ufffd")).rstrip()
        for stop in self._request.stop:
            begun = next((n for n in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:n])), 0)
            text = text[: len(text) - begun].rstrip()
        return text

    def _tell(self, found: dict[str, str]) -> dict[str, str]:
        new = {}
        for name, text in found.items():
            told = self._told[name]
            if len(text) > len(told) and text.startswith(told):
                new[name], self._told[name] = text[len(told) :], text
        return new
