"""`Deltas`: the parts of a turn that a stream sends while it is sampled; together they are the parsed turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentloop.gateway.turns.completions import (
    ClientCall,
    arguments_for_clients,
    calls_for_clients,
    text_for_clients,
)
from agentloop.gateway.turns.requests import ModelRequest
from agentloop.gateway.turns.stops import without_stop
from agentloop.process.offloading import off_loop
from agentloop.rendering.formats.beginnings import without_beginning_of
from agentloop.types.messages import ParsedTurn, ToolCall

if TYPE_CHECKING:
    from agentloop.rendering.base import Progress, Renderer

_MAX_PARSES = 256
"""A short turn is parsed again from its start at each token, a longer one when it has grown by 1/256. In total, parsing
covers at most 256 times its tokens."""


class TextDelta(NamedTuple):
    """New text of a turn, or new thinking."""

    kind: Literal["content", "reasoning_content"]
    text: str


class CallDelta(NamedTuple):
    """A part of a call. Parts of a call follow each other, with no other part of the turn between them."""

    number: int
    """Index of the call in its turn."""
    call: ClientCall
    """The call as far as it is known."""
    arguments: str
    """New text of the arguments as JSON."""
    begins: bool
    ends: bool


Delta = TextDelta | CallDelta


class Deltas:
    """The deltas of one turn.

    Text is sent up to the point where later tokens may change it: half a tag, half a stop string, half a character.
    A call is sent when it has ended; the arguments of the tools in `request.eager` are sent while they are sampled.
    """

    def __init__(self, request: ModelRequest, renderer: Renderer) -> None:
        self._request, self._renderer = request, renderer
        self._ids: list[int] = []
        self._num_parsed = 0
        self._sent = {"content": "", "reasoning_content": ""}
        self._calls: list[str] = []
        """Arguments of each call, as far as they were sent."""
        self._in_call = False
        """Whether the last call goes on."""

    async def more(self, ids: Sequence[int], call_id_prefix: str = "call_") -> list[Delta]:
        """Return the deltas that these tokens add; empty if nothing is certain yet."""
        self._ids.extend(ids)
        if (len(self._ids) - self._num_parsed) * _MAX_PARSES < len(self._ids):
            return []
        self._num_parsed = len(self._ids)
        parsed = await off_loop(len(self._ids), self._read, list(self._ids), call_id_prefix)
        return list(self._advance(parsed, certain(parsed.content, self._request.stop), is_over=False))

    def rest(self, parsed: ParsedTurn) -> list[Delta]:
        """Return the part of the whole turn that was not sent yet."""
        return list(self._advance(parsed, text_for_clients(parsed), is_over=True))

    def _read(self, ids: Sequence[int], call_id_prefix: str) -> ParsedTurn:
        parsed = read_stream(self._renderer, self._request, ids, "sampling", call_id_prefix)
        return without_stop(parsed, self._request.stop)[0]

    def _advance(self, parsed: ParsedTurn, content: str, *, is_over: bool) -> Iterator[Delta]:
        """Yield the new parts: first those of a call that was begun, then texts, then those of new calls."""
        calls = calls_for_clients(parsed)
        if self._in_call:
            number = len(self._calls) - 1
            yield from self._advance_call(number, calls[number], is_over)
        if self._in_call:
            return
        yield from self._advance_text("reasoning_content", parsed.reasoning or "")
        yield from self._advance_text("content", content)
        for number in range(len(self._calls), len(calls)):
            yield from self._advance_call(number, calls[number], is_over)

    def _advance_text(self, kind: Literal["content", "reasoning_content"], text: str) -> Iterator[Delta]:
        sent = self._sent[kind]
        if len(text) > len(sent) and text.startswith(sent):
            self._sent[kind] = text
            yield TextDelta(kind, text[len(sent) :])

    def _advance_call(self, number: int, call: ClientCall, is_over: bool) -> Iterator[Delta]:
        begins = number == len(self._calls)
        if begins:
            self._calls.append("")
        arguments, sent = arguments_for_clients(call), self._calls[number]
        assert arguments.startswith(sent)
        self._calls[number] = arguments
        ends = is_over or isinstance(call, ToolCall)
        self._in_call = not ends
        if begins or ends or arguments != sent:
            yield CallDelta(number, call, arguments[len(sent) :], begins, ends)


def read_stream(
    renderer: Renderer, request: ModelRequest, ids: Sequence[int], progress: Progress, call_id_prefix: str
) -> ParsedTurn:
    """Parse a turn as the client of a stream reads it."""
    return renderer.parse_stream(
        ids,
        progress,
        tools=request.tools,
        eager=request.eager,
        reads_calls=request.reads_calls,
        call_id_prefix=call_id_prefix,
    )


def certain(text: str, stops: Sequence[str]) -> str:
    """Return a sampled text without an end that may become a stop string."""
    for stop in stops:
        text = without_beginning_of(stop, text).rstrip()
    return text
