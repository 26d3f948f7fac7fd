"""Calls as a header and a JSON object between two tokens, with all calls in one section: DeepSeek, Kimi."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentloop.rendering.formats.base import CallFormat, CallReader, end_of_bad
from agentloop.rendering.formats.json_calls import Malformed, arguments_of, json_at, near, skip_space


@dataclass(frozen=True)
class Marked:
    """The tokens of one family."""

    opening: str
    header: re.Pattern[str]
    """Text between the opening and the JSON, with a group `name`, and a group `id` if the model writes ids."""
    closing: str
    section: tuple[str, str]
    example: str
    """Example of a well-formed call, for feedback to the model."""

    def read(self, reader: CallReader, start: int) -> int:
        """Read one call, or skip a token of the section (`CallFormat.read`)."""
        text = reader.text
        for token in self.section:
            if text.startswith(token, start):
                return start + len(token)
        position = start + len(self.opening)
        header = self.header.match(text, position)
        name = header["name"].strip() if header else ""
        try:
            if header is None or not name:
                raise Malformed(f"no function is named at {near(text, position)}")
            value, position = json_at(text, skip_space(text, header.end()))
            arguments = arguments_of(value)
            position = skip_space(text, position)
            # An open call counts as closed at the end of the turn or its section, or before the next call.
            if text.startswith(self.closing, position):
                position += len(self.closing)
            elif position < len(text) and not text.startswith((self.opening, self.section[1]), position):
                raise Malformed(f"{self.closing} is missing at {near(text, position)}")
        except Malformed as error:
            end = end_of_bad(text, position, self.opening, self.closing)
            reader.refuse(
                f"This tool call cannot be read: {error}. Write each call as {self.example}.", text[start:end], name
            )
            return end
        reader.add(name, arguments, header.groupdict().get("id"))
        return position


def marked(name: str, signs: tuple[str, ...], tokens: Marked) -> CallFormat:
    """Return the call format of these tokens."""
    opening = "|".join(re.escape(token) for token in (tokens.opening, *tokens.section))
    return CallFormat(name, signs, opening, tokens.read)
