"""ReTool's cold-start traces as function calls: `<code>`, `<interpreter>` and `<answer>` of the paper's format become
messages with calls of `code_interpreter` and their results.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from agentloop.types.messages import Message, ToolCall

_QUESTION = "*user question:*"
_PIECE = re.compile(r"<(code|interpreter|answer)>(.*?)</\1>", re.DOTALL)
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


class TraceError(ValueError):
    """A trace that is not in the paper's format."""


def as_messages(row: Mapping[str, Any]) -> list[Message]:
    """A row of JoeYing/ReTool-SFT, whose `messages` are the question in its prompt and the whole answer, as one
    conversation. Raises `TraceError`."""
    return [{"role": "user", "content": question_of(row)}, *_turns(str(row["messages"][1]["content"]))]


def question_of(row: Mapping[str, Any]) -> str:
    """The question in a row's prompt, which ends with how to answer. Raises `TraceError`."""
    _, mark, question = str(row["messages"][0]["content"]).partition(_QUESTION)
    if not mark:
        raise TraceError(f"the first message has no {_QUESTION!r}")
    return question.replace("<answer>", "").replace("</answer>", "").strip()


def _turns(text: str) -> list[Message]:
    messages: list[Message] = []
    said = ""
    place = num_calls = 0
    for match in _PIECE.finditer(text):
        kind, inside = match[1], match[2]
        said += text[place : match.start()]
        place = match.end()
        if kind == "code":
            call = ToolCall("code_interpreter", {"code": _program(inside)}, id=f"call_{num_calls}")
            messages.append({"role": "assistant", "content": said.strip(), "tool_calls": [call.as_dict()]})
            num_calls += 1
        elif kind == "interpreter":
            if not messages or messages[-1]["role"] != "assistant":
                raise TraceError("there is output that no code gave")
            messages.append({"role": "tool", "content": inside.strip()})
        else:
            messages.append({"role": "assistant", "content": (said + inside).strip()})
            return _checked(messages)
        said = ""
    raise TraceError("there is no <answer>")


def _program(text: str) -> str:
    fence = _FENCE.search(text)
    return (fence[1] if fence else text).strip("\n")


def _checked(messages: list[Message]) -> list[Message]:
    for message, following in itertools.pairwise(messages):
        if message.get("tool_calls") and following["role"] != "tool":
            raise TraceError("there is code without output")
        if message["role"] == "tool" and following["role"] == "tool":
            raise TraceError("there is output that no code gave")
    return messages
