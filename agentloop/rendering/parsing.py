"""Reading a sampled turn: what is thinking, what is said, what is called.

One pass from left to right, so that each tag is read where it counts: a call inside thinking is thinking, a think tag
inside a call's arguments is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from agentloop.errors import UserError, nearest
from agentloop.messages import InvalidCall, ParsedTurn, ToolCall
from agentloop.rendering.base import ToolSchemas

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


@dataclass(slots=True)
class CallReader:
    """What a call format works with: the text, the tools, and where the calls go."""

    text: str
    tools: ToolSchemas = ()
    call_id_prefix: str = "call_"
    calls: list[ToolCall | InvalidCall] = field(default_factory=list)

    def add(self, name: str, arguments: dict[str, object]) -> None:
        self.calls.append(ToolCall(name, arguments, f"{self.call_id_prefix}{len(self.calls)}"))

    def refuse(self, error: str, raw: str) -> None:
        """Count something that cannot be read as a call; `error` is shown to the model."""
        self.calls.append(InvalidCall(error, raw, f"{self.call_id_prefix}{len(self.calls)}"))


@dataclass(slots=True, frozen=True)
class CallFormat:
    """How a model family writes calls."""

    name: str
    opening: str
    """Regular expression of what begins a call."""
    read: Callable[[CallReader, int], int]
    """Reads the call that begins at an index of the text; returns the index behind it."""


def end_of_bad(text: str, position: int, opening: str, closing: str) -> int:
    """Where a call that cannot be read is taken to end: behind its closing tag, else before the next call."""
    close = text.find(closing, position)
    following = text.find(opening, position)
    if close >= 0 and (following < 0 or close < following):
        return close + len(closing)
    return following if following >= 0 else len(text)


class TurnParser:
    """Parses turns of one format. `starts_in_thinking`: the generation prompt has opened the think tag."""

    def __init__(self, call_format: CallFormat | None, *, starts_in_thinking: bool = False) -> None:
        self._format = call_format
        self._starts_in_thinking = starts_in_thinking
        tags = [THINK_OPEN, THINK_CLOSE]
        self._thoughts = re.compile("|".join(tags))
        self._marks = re.compile("|".join([*tags, call_format.opening])) if call_format else self._thoughts

    def parse(
        self, text: str, *, complete: bool = True, tools: ToolSchemas = (), call_id_prefix: str = "call_"
    ) -> ParsedTurn:
        """Read the text of a turn. One that is not complete has no calls: what looks like one is content."""
        reader = CallReader(text, tools, call_id_prefix)
        marks = self._marks if complete else self._thoughts
        content: list[str] = []
        reasoning: list[str] = []
        position = self._think(reader.text, 0, reasoning) if self._starts_in_thinking else 0
        while mark := marks.search(text, position):
            content.append(text[position : mark.start()])
            if mark[0] == THINK_OPEN:
                position = self._think(text, mark.end(), reasoning)
            elif mark[0] == THINK_CLOSE:
                if not reasoning:  # The opening tag is missing: what stands before was thinking, calls included.
                    reasoning.append(text[: mark.start()].strip())
                    content.clear()
                    reader.calls.clear()
                position = mark.end()
            else:
                assert self._format is not None
                position = self._format.read(reader, mark.start())
        content.append(text[position:])
        return ParsedTurn("".join(content).strip(), "\n".join(reasoning) if reasoning else None, tuple(reader.calls))

    @staticmethod
    def _think(text: str, start: int, reasoning: list[str]) -> int:
        """Take the thinking that begins at `start`, all the rest where it is not closed; the index behind it."""
        end = text.find(THINK_CLOSE, start)
        reasoning.append(text[start : end if end >= 0 else len(text)].strip())
        return end + len(THINK_CLOSE) if end >= 0 else len(text)


def call_format(name: str) -> CallFormat:
    """The call format of that name. Raises `UserError`."""
    formats = _formats()
    if name not in formats:
        raise UserError(
            f"There is no tool-call format {name!r}.{nearest(name, formats)} Known: {', '.join(sorted(formats))}."
        )
    return formats[name]


def detect_format(template: str) -> CallFormat | None:
    """The format that a chat template shows its model; None where it shows none that is known."""
    formats = _formats()
    if "<function=" in template:
        return formats["qwen3_coder"]
    if "<tool_call>" in template and "<arg_key>" not in template:  # GLM has the tag but not the JSON
        return formats["hermes"]
    return None


def _formats() -> dict[str, CallFormat]:
    from agentloop.rendering.hermes import HERMES
    from agentloop.rendering.qwen3_coder import QWEN3_CODER

    return {item.name: item for item in (HERMES, QWEN3_CODER)}
