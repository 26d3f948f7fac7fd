"""Calls as a header and a JSON object between two tokens, with all calls in one section: DeepSeek up to V3.1, Kimi K2.

    V3, R1: <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
            ```json
            {...}
            ```<｜tool▁call▁end｜>
    V3.1:   <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
    Kimi:   <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>

The calls of DeepSeek are between <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>, those of Kimi between
<|tool_calls_section_begin|> and <|tool_calls_section_end|>. Kimi writes the name of the function into the id of the
call, to which results refer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentloop.rendering.formats.base import Begun, CallFormat, CallReader, end_of_bad
from agentloop.rendering.formats.beginnings import begun_object
from agentloop.rendering.formats.strict_json import Malformed, arguments_of, json_at, near, skip_space


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

    def begin(self, reader: CallReader, start: int) -> Begun | None:
        """Read the beginning of a call (`CallFormat.begin`)."""
        header = self.header.match(reader.text, start + len(self.opening))
        if header is None or not (name := header["name"].strip()):
            return None
        arguments = begun_object(reader.text, skip_space(reader.text, header.end()))
        return None if arguments is None else Begun(name, arguments, header.groupdict().get("id"))

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


def _format(name: str, signs: tuple[str, ...], tokens: Marked) -> CallFormat:
    opening = "|".join(re.escape(token) for token in (tokens.opening, *tokens.section))
    return CallFormat(name, signs, opening, tokens.read, tokens.begin)


_OPEN, _SEPARATOR, _CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def _deepseek(name: str, signs: tuple[str, ...], header: str, close: str, example: str) -> CallFormat:
    return _format(
        name, signs, Marked(_OPEN, re.compile(header), close, _SECTION, f"{_SECTION[0]}{_OPEN}{example}{_SECTION[1]}")
    )


DEEPSEEK_R1 = _deepseek(
    "deepseek_r1",
    (_OPEN, "```json"),
    rf"\w*{re.escape(_SEPARATOR)}(?P<name>[^\n<>]+)\n```json\n",
    "```" + _CLOSE,
    f"function{_SEPARATOR}TOOL\n```json\n{{...}}\n```{_CLOSE}",
)
DEEPSEEK_V3_1 = _deepseek(
    "deepseek_v3_1",
    (_OPEN, _SEPARATOR),
    rf"(?P<name>[^\n<>]+?){re.escape(_SEPARATOR)}",
    _CLOSE,
    f"TOOL{_SEPARATOR}{{...}}{_CLOSE}",
)
_KIMI_SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")

KIMI = _format(
    "kimi",
    ("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    Marked(
        "<|tool_call_begin|>",
        re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s<>]+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>"),
        "<|tool_call_end|>",
        _KIMI_SECTION,
        f"{_KIMI_SECTION[0]}<|tool_call_begin|>functions.TOOL:0<|tool_call_argument_begin|>{{...}}<|tool_call_end|>"
        f"{_KIMI_SECTION[1]}",
    ),
)
