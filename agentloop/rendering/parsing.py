"""`TurnParser`: splits a sampled turn into thinking, content and calls.

It reads each turn once from left to right, so the position of a tag matters: a call inside thinking is thinking, and a
think tag inside the arguments of a call is part of an argument.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from agentloop.rendering.formats.base import (
    MOST_CALLS,
    PLAIN,
    Begun,
    CallFormat,
    CallReader,
    Progress,
    ToolSchemas,
    call_in_thinking,
)
from agentloop.types.messages import InvalidCall, ParsedTurn

CallsInThinking = Literal["feedback", "execute"]
_TOO_MANY = f"The turn has more than {MOST_CALLS} calls; the others are ignored."
_MAY_BEGIN_A_TAG = re.compile(r"[<\[{`|][^\n]{0,31}\Z")
"""End of a text that may become the tag of a call or of thinking."""
_MAY_BECOME_A_TOKEN = re.compile(r"<(?:\|\w*\|?)?\Z")


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
        tools: ToolSchemas = (),
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        """Parse the text of a turn, with the options of `Renderer.parse`; calls of an incomplete turn are content."""
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
                reader.refuse(_TOO_MANY, text[mark.start() :])
                position = len(text)
            else:
                assert self._format.read is not None
                position = self._format.read(reader, mark.start())
        content.append(text[position:])
        return ParsedTurn("".join(content).strip(), "\n".join(reasoning) if reasoning else None, tuple(reader.calls))

    def parse_stream(
        self,
        text: str,
        progress: Progress,
        *,
        tools: ToolSchemas = (),
        eager: Collection[str] = (),
        reads_calls: bool = True,
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        """Parse the text of a turn, complete or not, with the options of `Renderer.parse_stream`."""
        if progress == "sampling":
            text = text.rstrip("\ufffd")  # half a character
            if self._undecided is not None and self._undecided.match(text):
                return ParsedTurn("")
            if self._format.reads_in_steps:
                text = _MAY_BECOME_A_TOKEN.sub("", text)
            elif self._format.read_turn is not None:
                text = certain_text(text)
        reader = CallReader(text, tools, call_id_prefix, make_id=self._format.make_id, progress=progress, eager=eager)
        if self._format.read_turn is None:
            return self._read_stream(reader, reads_calls)
        in_steps = self._format.reads_in_steps
        parsed = self._format.read_turn(reader, reads_calls and (in_steps or progress != "cut"))
        return parsed if in_steps or progress != "sampling" else replace(parsed, calls=())

    def _read_stream(self, reader: CallReader, reads_calls: bool) -> ParsedTurn:
        text, is_sampling = reader.text, reader.progress == "sampling"
        marks = self._marks if reads_calls else self._thoughts
        content: list[str] = []
        reasoning: list[str] = []
        marked: int | None = None
        """Number of pieces before the first mark of a call. A turn that is cut before its first call is all text."""

        def think(start: int) -> int:
            if is_sampling:
                return self._think_so_far(text, start, reasoning)
            return self._think(reader, start, reasoning, reads_calls and reader.progress == "complete")

        position = think(0) if self._starts_in_thinking else 0
        while mark := marks.search(text, position):
            content.append(text[position : mark.start()])
            if mark[0] == self._open:
                position = think(mark.end())
            elif mark[0] == self._close:
                position = mark.end()
            else:
                marked = len(content) if marked is None else marked
                position = self._read_streamed_call(reader, mark.start(), content)
        if reads_calls and reader.progress == "cut" and not reader.calls:
            return self._read_stream(reader, reads_calls=False)
        content.append(certain_text(text[position:]) if is_sampling else text[position:])
        if is_sampling and marked is not None and not reader.calls:
            del content[marked:]
        return ParsedTurn("".join(content).strip(), "\n".join(reasoning) if reasoning else None, tuple(reader.calls))

    def _read_streamed_call(self, reader: CallReader, start: int, content: list[str]) -> int:
        """Read the call at an index; return the index after it, or the end if the call may go on there."""
        assert self._format.read is not None
        text, count = reader.text, len(reader.calls)
        if count >= MOST_CALLS:
            if reader.progress != "sampling":
                reader.refuse(_TOO_MANY, text[start:])
            return len(text)
        end = self._format.read(reader, start)
        if len(reader.calls) == count:
            return end  # a mark around calls
        last = reader.calls[-1]
        refused = last if isinstance(last, InvalidCall) else None
        may_go_on = reader.progress == "sampling" and refused is not None
        if (reader.progress != "complete" and end >= len(text)) or may_go_on:
            del reader.calls[count:]
            if not reader.leave(self._begun(reader, start), text[start:]) and reader.progress == "cut":
                content.append(text[start:])
            return len(text)
        if refused is not None:
            reader.calls.pop()
            if not reader.leave(self._begun(reader, start), refused.raw, refused.error):
                reader.calls.append(refused)
        return end

    def _begun(self, reader: CallReader, start: int) -> Begun | None:
        return self._format.begin(reader, start) if self._format.begin is not None and reader.eager else None

    def _think_so_far(self, text: str, start: int, reasoning: list[str]) -> int:
        """Add the certain part of the thinking that begins at `start`; return the index after it."""
        end = text.find(self._close, start)
        if end >= 0:
            reasoning.append(text[start:end].strip())
            return end + len(self._close)
        call = self._opening.search(text, start) if self._opening is not None else None  # it may end the thinking
        reasoning.append((text[start : call.start()] if call else certain_text(text[start:])).strip())
        return len(text)

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


def certain_text(text: str) -> str:
    """Return a text without an end that may become a tag."""
    return _MAY_BEGIN_A_TAG.sub("", text)
