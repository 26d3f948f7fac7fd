"""Calls as a header and a JSON object, each call between two tokens and all of them in a section: DeepSeek, Kimi."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentloop.rendering.formats.json_calls import Malformed, arguments_of, json_at, near, skip_space
from agentloop.rendering.parsing import CallFormat, CallReader, end_of_bad


@dataclass(frozen=True)
class Marked:
    """The tokens of one family."""

    opening: str
    header: re.Pattern[str]
    """What stands between the opening and the JSON: the group `name`, and `id` where the model gives one."""
    closing: str
    section: tuple[str, str]
    example: str
    """Of a call, as the model should write it."""

    def read(self, reader: CallReader, start: int) -> int:
        """One call, or a token of the section, which says nothing. See `CallFormat.read`."""
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
            # A call left open is taken as closed where the turn, its section or the next call begins.
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
    """The format of these tokens."""
    opening = "|".join(re.escape(token) for token in (tokens.opening, *tokens.section))
    return CallFormat(name, signs, opening, tokens.read)
