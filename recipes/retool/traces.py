"""Convert ReTool's cold-start traces to function calls.

`<code>`, `<interpreter>` and `<answer>` of the paper's format become messages with calls of `code_interpreter`.
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
    """The trace is not in the paper's format."""


def as_messages(row: Mapping[str, Any]) -> list[Message]:
    """Convert a row of JoeYing/ReTool-SFT to one conversation. Raises `TraceError`.

    The `messages` of the row are the question in its prompt, and the whole answer.
    """
    return [{"role": "user", "content": question_of(row)}, *_turns(str(row["messages"][1]["content"]))]


def question_of(row: Mapping[str, Any]) -> str:
    """Return the question at the end of a row's prompt. Raises `TraceError`."""
    _, mark, question = str(row["messages"][0]["content"]).partition(_QUESTION)
    if not mark:
        raise TraceError(f"the first message has no {_QUESTION!r}")
    return question.replace("<answer>", "").replace("</answer>", "").strip()


def _turns(text: str) -> list[Message]:
    messages: list[Message] = []
    text_so_far = ""
    place = num_calls = 0
    for match in _PIECE.finditer(text):
        kind, inside = match[1], match[2]
        text_so_far += text[place : match.start()]
        place = match.end()
        if kind == "code":
            call = ToolCall("code_interpreter", {"code": _program(inside)}, id=f"call_{num_calls}")
            messages.append({"role": "assistant", "content": text_so_far.strip(), "tool_calls": [call.as_dict()]})
            num_calls += 1
        elif kind == "interpreter":
            if not messages or messages[-1]["role"] != "assistant":
                raise TraceError("there is output without code")
            messages.append({"role": "tool", "content": inside.strip()})
        else:
            messages.append({"role": "assistant", "content": (text_so_far + inside).strip()})
            return _checked(messages)
        text_so_far = ""
    raise TraceError("there is no <answer>")


def _program(text: str) -> str:
    fence = _FENCE.search(text)
    return (fence[1] if fence else text).strip("\n")


def _checked(messages: list[Message]) -> list[Message]:
    for message, following in itertools.pairwise(messages):
        if message.get("tool_calls") and following["role"] != "tool":
            raise TraceError("there is code without output")
        if message["role"] == "tool" and following["role"] == "tool":
            raise TraceError("there is output without code")
    return messages
