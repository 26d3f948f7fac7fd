"""`TurnParser`: split a sampled turn into thinking, content and calls.

It reads each turn once from left to right, so a tag counts by its place: a call inside thinking is thinking, and a
think tag inside the arguments of a call is an argument.
"""

from __future__ import annotations

import re

from agentloop.rendering.formats.base import PLAIN, CallFormat, CallReader, ToolSchemas
from agentloop.types.messages import ParsedTurn


class TurnParser:
    """Parses turns of one format; with `starts_in_thinking` the generation prompt has opened the think tag."""

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
        """Parse the text of a turn, with the options of `Renderer.parse`; calls of an incomplete turn are content."""
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
                if not reasoning:  # The opening tag is missing: all text before it was thinking, calls included.
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
        """Add the thinking that begins at `start`, up to the end if it is not closed; return the index after it."""
        end = text.find(self._close, start)
        reasoning.append(text[start : end if end >= 0 else len(text)].strip())
        return end + len(self._close) if end >= 0 else len(text)
