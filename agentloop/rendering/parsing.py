"""Reading a sampled turn: what is thinking, what is said, what is called.

One pass from left to right, so that each tag is read where it counts: a call inside thinking is thinking, a think tag
inside a call's arguments is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from agentloop.rendering.base import ToolSchemas
from agentloop.types.messages import InvalidCall, ParsedTurn, ToolCall


@dataclass(slots=True)
class CallReader:
    """What a call format works with: the text, the tools, and where the calls go."""

    text: str
    tools: ToolSchemas = ()
    call_id_prefix: str = "call_"
    calls: list[ToolCall | InvalidCall] = field(default_factory=list)
    make_id: Callable[[str], str] | None = None
    """Of a format whose ids are of a certain form: from what is unique in the episode."""

    def add(self, name: str, arguments: dict[str, object], call_id: str | None = None) -> None:
        """A call; its id is `call_id` where the model gave one."""
        self.calls.append(ToolCall(name, arguments, call_id or self._next_id()))

    def refuse(self, error: str, raw: str, name: str = "") -> None:
        """Count something that cannot be read as a call, of the function `name` where that is known; `error` is shown
        to the model."""
        self.calls.append(InvalidCall(error, raw, self._next_id(), name))

    def _next_id(self) -> str:
        call_id = f"{self.call_id_prefix}{len(self.calls)}"
        return self.make_id(call_id) if self.make_id else call_id


@dataclass(slots=True, frozen=True)
class CallFormat:
    """How a model family writes its turns: calls, thinking, and what ends them. Those known are in
    `agentloop.rendering.formats`."""

    name: str
    signs: tuple[str, ...]
    """All of them are in a chat template of this family."""
    opening: str = ""
    """Regular expression of what begins a call."""
    read: Callable[[CallReader, int], int] | None = None
    """Reads the call that begins at an index of the text; returns the index behind it."""
    read_turn: Callable[[CallReader, bool], ParsedTurn] | None = None
    """Reads a whole turn, complete or not, where it is more than text with calls and thinking in it."""
    undecided: str = ""
    """Regular expression of the beginning of a turn of which only its end says whether it is text or a call."""
    thinking: tuple[str, str] = ("<think>", "</think>")
    ends: tuple[str, ...] = ()
    """Tokens that end a turn beside those that the template shows, where the tokenizer has them."""
    past_end: str | None = None
    """What the template writes for the end of an answer once another message follows; what was sampled stays."""
    result_opening: str | None = None
    """The token that opens a result, where a turn with calls ends with it."""
    make_id: Callable[[str], str] | None = None
    """See `CallReader`."""


PLAIN = CallFormat("plain", ())
"""Of a model of which no way to write calls is known."""


def end_of_bad(text: str, position: int, opening: str, closing: str) -> int:
    """Where a call that cannot be read is taken to end: behind its closing tag, else before the next call."""
    close = text.find(closing, position) if closing else -1
    following = text.find(opening, position)
    if close >= 0 and (following < 0 or close < following):
        return close + len(closing)
    return following if following >= 0 else len(text)


class TurnParser:
    """Parses turns of one format. `starts_in_thinking`: the generation prompt has opened the think tag."""

    def __init__(self, call_format: CallFormat | None, *, starts_in_thinking: bool = False) -> None:
        self._format = call_format or PLAIN
        self._starts_in_thinking = starts_in_thinking
        self._undecided = re.compile(self._format.undecided) if self._format.undecided else None
        self._open, self._close = self._format.thinking
        tags = [re.escape(self._open), re.escape(self._close)]
        self._thoughts = re.compile("|".join(tags))
        self._marks = re.compile("|".join([*tags, self._format.opening])) if self._format.opening else self._thoughts

    def parse(
        self,
        text: str,
        *,
        complete: bool = True,
        over: bool = True,
        tools: ToolSchemas = (),
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        """Read the text of a turn. One that is not complete has no calls: what looks like one is content. See
        `Renderer.parse`."""
        if not over and self._undecided is not None and self._undecided.match(text):
            return ParsedTurn("")
        reader = CallReader(text, tools, call_id_prefix, make_id=self._format.make_id)
        if self._format.read_turn is not None:
            return self._format.read_turn(reader, complete)
        marks = self._marks if complete else self._thoughts
        content: list[str] = []
        reasoning: list[str] = []
        position = self._think(reader.text, 0, reasoning) if self._starts_in_thinking else 0
        while mark := marks.search(text, position):
            content.append(text[position : mark.start()])
            if mark[0] == self._open:
                position = self._think(text, mark.end(), reasoning)
            elif mark[0] == self._close:
                if not reasoning:  # The opening tag is missing: what stands before was thinking, calls included.
                    reasoning.append(text[: mark.start()].strip())
                    content.clear()
                    reader.calls.clear()
                position = mark.end()
            else:
                assert self._format.read is not None
                position = self._format.read(reader, mark.start())
        content.append(text[position:])
        return ParsedTurn("".join(content).strip(), "\n".join(reasoning) if reasoning else None, tuple(reader.calls))

    def _think(self, text: str, start: int, reasoning: list[str]) -> int:
        """Take the thinking that begins at `start`, all the rest where it is not closed; the index behind it."""
        end = text.find(self._close, start)
        reasoning.append(text[start : end if end >= 0 else len(text)].strip())
        return end + len(self._close) if end >= 0 else len(text)
