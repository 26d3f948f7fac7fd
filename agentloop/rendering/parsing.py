"""`TurnParser`: splits a sampled turn into thinking, content and calls.

It reads each turn once from left to right, so the position of a tag matters: a call inside thinking is thinking, and a
think tag inside the arguments of a call is part of an argument.
"""

from __future__ import annotations

import re
from typing import Literal

from agentloop.rendering.formats.base import (
    MOST_CALLS,
    PLAIN,
    CallFormat,
    CallReader,
    ToolSchemas,
    call_in_thinking,
)
from agentloop.types.messages import ParsedTurn

CallsInThinking = Literal["feedback", "execute"]


class TurnParser:
    """Parses turns of one format.

    With `starts_in_thinking` the generation prompt has opened the think tag. `calls_in_thinking` is as in
    `renderer_for`.
    """

    def __init__(
        self,
        call_format: CallFormat | None,
        *,
        starts_in_thinking: bool = False,
        calls_in_thinking: CallsInThinking = "feedback",
    ) -> None:
        self._format = call_format or PLAIN
        self._starts_in_thinking = starts_in_thinking
        self._executes = calls_in_thinking == "execute"
        self._undecided = re.compile(self._format.undecided) if self._format.undecided else None
        self._open, self._close = self._format.thinking
        tags = [re.escape(self._open), re.escape(self._close)]
        self._thoughts = re.compile("|".join(tags))
        self._opening = re.compile(self._format.opening) if self._format.opening else None
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
        position = self._think(reader, 0, reasoning, complete) if self._starts_in_thinking else 0
        while mark := marks.search(text, position):
            content.append(text[position : mark.start()])
            if mark[0] == self._open:
                position = self._think(reader, mark.end(), reasoning, complete)
            elif mark[0] == self._close:
                if not reasoning:  # The opening tag is missing: all text before this was thinking, calls included.
                    reasoning.append(text[: mark.start()].strip())
                    content.clear()
                    reader.calls.clear()
                position = mark.end()
            elif len(reader.calls) >= MOST_CALLS:
                reader.refuse(
                    f"The turn has more than {MOST_CALLS} calls; the others are ignored.", text[mark.start() :]
                )
                position = len(text)
            else:
                assert self._format.read is not None
                position = self._format.read(reader, mark.start())
        content.append(text[position:])
        return ParsedTurn("".join(content).strip(), "\n".join(reasoning) if reasoning else None, tuple(reader.calls))

    def _think(self, reader: CallReader, start: int, reasoning: list[str], complete: bool) -> int:
        """Add the thinking that begins at `start`, up to the end if it is not closed; return the index after it.

        A call inside thinking that is never closed is rejected, or ends the thinking.
        """
        text = reader.text
        end = text.find(self._close, start)
        if end >= 0:
            reasoning.append(text[start:end].strip())
            return end + len(self._close)
        call = self._opening.search(text, start) if self._opening is not None and complete else None
        if call is not None and self._executes:
            reasoning.append(text[start : call.start()].strip())
            return call.start()
        reasoning.append(text[start:].strip())
        if call is not None and (name := self._name_of_call(reader, call.start())) is not None:
            reader.refuse(call_in_thinking(self._close), text[call.start() :], name)
        return len(text)

    def _name_of_call(self, reader: CallReader, start: int) -> str | None:
        """Return the name of the function that is called at an index; "" if unreadable, None if there is no call."""
        assert self._format.read is not None
        assert self._opening is not None
        attempt = CallReader(reader.text, reader.tools, make_id=self._format.make_id)
        position = start
        while not attempt.calls and (mark := self._opening.search(reader.text, position)):
            position = self._format.read(attempt, mark.start())
        return attempt.calls[0].name if attempt.calls else None
