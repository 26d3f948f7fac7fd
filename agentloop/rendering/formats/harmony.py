"""Turns of gpt-oss: messages on channels, the last of which addresses the user or a function.

    <|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

The analysis channel is thinking; commentary and final without a recipient are content. OpenAI describes the format at
https://cookbook.openai.com/articles/openai-harmony.
"""

from __future__ import annotations

import re

from agentloop.rendering.formats.base import Begun, CallFormat, CallReader, call_in_thinking
from agentloop.rendering.formats.beginnings import begun_object
from agentloop.rendering.formats.strict_json import Malformed, arguments_of, json_of, skip_space
from agentloop.types.messages import ParsedTurn

_MESSAGE = re.compile(
    r"(?P<header>.*?)<\|message\|>(?P<body>.*?)(?P<end><\|end\|>|<\|call\|>|<\|return\|>|\Z)", re.DOTALL
)
_HEADER = re.compile(r"<\|(?:start|channel)\|>|\A\s*to=")
"""Beginning of the header of a message; a header without a message is dropped."""
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_UNFINISHED = re.compile(
    r"\s*(?:<\|start\|>assistant\s*)?<\|channel\|>\s*final(?:\s*<\|constrain\|>\s*\w+)?(?P<text>.*)", re.DOTALL
)
"""An answer without <|message|>."""
_RECIPIENT = re.compile(r"\bto=(\S+?)(?=<\||\s|\Z)")
_HOW = (
    "Write a call as <|channel|>commentary to=functions.TOOL <|constrain|>json<|message|>{...}<|call|>, with one JSON "
    "object inside."
)


def _read_turn(reader: CallReader, complete: bool) -> ParsedTurn:
    text = reader.text
    said: list[str] = []
    thought: list[str] = []
    position = 0
    while match := _MESSAGE.match(text, position):
        position = match.end()
        channel = _CHANNEL.search(match["header"])
        recipient = _RECIPIENT.search(match["header"])
        is_thought = channel is not None and channel[1] == "analysis"
        if recipient and recipient[1] not in ("user", "assistant"):
            name = recipient[1].removeprefix("functions.")
            has_ended = reader.progress == "complete" or bool(match["end"])
            if complete and has_ended:
                _call(reader, name, match["body"])
            elif not (complete and reader.leave(_begun(name, match["body"]), match[0])):
                said.append(match[0] if has_ended or reader.progress == "cut" else "")
        else:
            (thought if is_thought else said).append(match["body"].strip())
            if is_thought and complete and match[0].endswith("<|call|>"):
                reader.refuse(call_in_thinking("<|end|>"), match["body"])
    if reader.progress != "sampling":  # the rest may become a header
        rest = text[position:]
        answer = _UNFINISHED.match(rest)
        said.append(answer["text"].strip() if answer else _HEADER.split(rest, maxsplit=1)[0].strip())
    return ParsedTurn("\n".join(filter(None, said)), "\n".join(thought) if thought else None, tuple(reader.calls))


def _call(reader: CallReader, name: str, body: str) -> None:
    try:
        arguments = arguments_of(json_of(body) if body.strip() else {})
    except Malformed as error:
        message = f"This tool call cannot be read: {error}. {_HOW}"
        if not reader.leave(_begun(name, body), body, message):
            reader.refuse(message, body, name)
    else:
        reader.add(name, arguments)


def _begun(name: str, body: str) -> Begun | None:
    arguments = begun_object(body, skip_space(body, 0))
    return None if arguments is None else Begun(name, arguments)


HARMONY = CallFormat(
    "harmony",
    ("<|channel|>", "<|message|>", "<|call|>"),
    read_turn=_read_turn,
    reads_in_steps=True,
    undecided=r"(?s)\s*(?:[^<\s]|<\|channel\|>\s*final)(?!.*<\|message\|>)",
    thinking=("<|channel|>analysis<|message|>", "<|end|>"),
    past_end="<|end|>",
)
