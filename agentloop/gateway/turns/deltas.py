"""`Deltas`: the parts of a turn that a stream sends while it is sampled; together they are the parsed turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentloop.gateway.turns.completions import text_for_clients
from agentloop.gateway.turns.requests import ModelRequest
from agentloop.gateway.turns.stops import without_stop
from agentloop.process.offloading import off_loop
from agentloop.types.messages import ParsedTurn

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer

_MAY_BEGIN_A_TAG = re.compile(r"[<\[{`|][^\n]{0,31}$")
"""End of a text that may become the tag of a call or of thinking."""

_MAX_PARSES = 256
"""A short turn is parsed again from its start at each token, a longer one when it has grown by 1/256. In total, parsing
covers at most 256 times its tokens."""


class Deltas:
    """The deltas of one turn.

    Text is sent up to the point where later tokens may change it: half a tag, half a stop string, half a
    character. Calls are sent when the turn is over.
    """

    def __init__(self, request: ModelRequest, renderer: Renderer) -> None:
        self._request, self._renderer = request, renderer
        self._ids: list[int] = []
        self._num_parsed = 0
        self._sent = {"content": "", "reasoning_content": ""}

    async def more(self, ids: Sequence[int]) -> dict[str, str]:
        """Return the delta that these tokens add; empty if nothing is certain yet."""
        self._ids.extend(ids)
        if (len(self._ids) - self._num_parsed) * _MAX_PARSES < len(self._ids):
            return {}
        self._num_parsed = len(self._ids)
        parsed = await off_loop(len(self._ids), self._read, list(self._ids))
        is_over = bool(parsed.calls)  # text after a call is sent at the end
        found = {"reasoning_content": parsed.reasoning or "", "content": "" if is_over else parsed.content}
        return self._advance({name: certain(text, self._request.stop) for name, text in found.items()})

    def rest(self, parsed: ParsedTurn) -> dict[str, str]:
        """Return the part of the whole turn that was not sent yet."""
        return self._advance({"reasoning_content": parsed.reasoning or "", "content": text_for_clients(parsed)})

    def _read(self, ids: Sequence[int]) -> ParsedTurn:
        request = self._request
        parsed = self._renderer.parse(ids, complete=request.reads_calls, over=False, tools=request.tools)
        return without_stop(parsed, request.stop)[0]

    def _advance(self, found: dict[str, str]) -> dict[str, str]:
        new = {}
        for name, text in found.items():
            sent = self._sent[name]
            if len(text) > len(sent) and text.startswith(sent):
                new[name], self._sent[name] = text[len(sent) :], text
        return new


def certain(text: str, stops: Sequence[str]) -> str:
    """Return a sampled text without an end that may become a tag, a stop string or another character."""
    text = _MAY_BEGIN_A_TAG.sub("", text.rstrip("\ufffd")).rstrip()
    for stop in stops:
        begun = next((n for n in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:n])), 0)
        text = text[: len(text) - begun].rstrip()
    return text
