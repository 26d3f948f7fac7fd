"""`CallFormat`: how a model family writes its turns, and `CallReader`, which collects the calls of one turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agentloop.types.messages import InvalidCall, ParsedTurn, ToolCall, UnfinishedCall

ToolSchemas = Sequence[dict[str, Any]]
"""OpenAI-style schemas, `{"type": "function", "function": {...}}` each.

Pass the same tuple every time: caches use its `id()`, so a thousand episodes render their tools once.
"""


Progress = Literal["sampling", "cut", "complete"]
"""State of a turn: it may go on, a token limit cut it, or it ended itself."""

MOST_CALLS = 128
"""Largest number of calls that are read in one turn: each malformed call may cost a search through the whole turn."""


class Begun(NamedTuple):
    """The beginning of a call that may go on."""

    name: str
    arguments: str
    """Beginning of the arguments as `json.dumps` writes them; the end of the object is missing."""
    call_id: str | None = None
    """Id that the model wrote, if any."""


@dataclass(slots=True)
class CallReader:
    """State while reading one turn: its text, the tools, and the calls found so far."""

    text: str
    tools: ToolSchemas = ()
    call_id_prefix: str = "call_"
    calls: list[ToolCall | InvalidCall] = field(default_factory=list)
    make_id: Callable[[str], str] | None = None
    """Converts an id that is unique in the episode to the form that the format needs."""
    progress: Progress = "complete"
    eager: Collection[str] = ()
    """Names of the tools whose arguments a stream sends while they are sampled."""

    def add(self, name: str, arguments: dict[str, object], call_id: str | None = None) -> None:
        """Add a call; `call_id` is the id that the model wrote, if any."""
        self.calls.append(ToolCall(name, arguments, call_id or self._next_id()))

    def refuse(self, error: str, raw: str, name: str = "") -> None:
        """Add a malformed call, with the name of its function if known; the model gets `error` as feedback."""
        self.calls.append(InvalidCall(error, raw, self._next_id(), name))

    def leave(self, begun: Begun | None, raw: str, error: str = "The call has not ended.") -> bool:
        """Add an unfinished call if a stream has sent its beginning; return whether it has."""
        if begun is None or begun.name not in self.eager:
            return False
        call_id = begun.call_id or self._next_id()
        self.calls.append(UnfinishedCall(error, raw, call_id, begun.name, begun.arguments))
        return True

    def _next_id(self) -> str:
        call_id = f"{self.call_id_prefix}{len(self.calls)}"
        return self.make_id(call_id) if self.make_id else call_id


@dataclass(slots=True, frozen=True)
class CallFormat:
    """How a model family writes its turns: calls, thinking and end-of-turn tokens."""

    name: str
    signs: tuple[str, ...]
    """Texts that all occur in a chat template of this family."""
    opening: str = ""
    """Regular expression that matches the beginning of a call."""
    read: Callable[[CallReader, int], int] | None = None
    """Reads the call at an index of the text, and returns the index after it."""
    begin: Callable[[CallReader, int], Begun | None] | None = None
    """Reads the beginning of the call at an index, which has not ended or is malformed; None if its name is not known
    yet. More text only makes the result longer. Formats without it send calls when they have ended."""
    read_turn: Callable[[CallReader, bool], ParsedTurn] | None = None
    """Reads a whole turn, with or without its calls, for formats that are more than text with calls and thinking."""
    reads_in_steps: bool = False
    """Whether `read_turn` also reads turns that may go on, as `CallReader.progress` tells it."""
    undecided: str = ""
    """Regular expression that matches an incomplete turn that may still become text or a call."""
    thinking: tuple[str, str] = ("<think>", "</think>")
    ends: tuple[str, ...] = ()
    """Tokens that end a turn in addition to those of the template, if the tokenizer has them."""
    past_end: str | None = None
    """Token that the template writes at the end of an answer once another message follows; the stream keeps the sampled
    one."""
    result_opening: str | None = None
    """Token that opens a result, for formats in which turns with calls end with it."""
    make_id: Callable[[str], str] | None = None
    """`CallReader.make_id` of this format."""


PLAIN = CallFormat("plain", ())
"""Format of a model with an unknown call format."""


def call_in_thinking(closing: str) -> str:
    """Return the error message for a call inside thinking that is never closed."""
    return f"This tool call is not run, because it is inside thinking. Close the thinking with {closing} before a call."


def end_of_bad(text: str, position: int, opening: str, closing: str) -> int:
    """Return the end of a malformed call: after its closing tag, or else before the next call."""
    close = text.find(closing, position) if closing else -1
    following = text.find(opening, position)
    if close >= 0 and (following < 0 or close < following):
        return close + len(closing)
    return following if following >= 0 else len(text)
