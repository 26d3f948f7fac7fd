"""What a chat template puts behind an assistant turn, found by rendering small conversations.

A sampled turn is followed by what the template writes between it and the next turn. That text is the difference of
two renders of a made-up conversation, [user, assistant] and [user, assistant, new messages], behind the sentinel which
is the assistant's content. The real history is never rendered again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.base import ToolSchemas
from agentloop.rendering.encoding import TextEncoder
from agentloop.rendering.parsing import THINK_CLOSE, THINK_OPEN
from agentloop.rendering.template import ChatTemplate

_ASSISTANT = "zAsstQkx7w"
_USER = {"role": "user", "content": "zUserQkx7w"}
# Templates may drop the thinking of past turns; the stream keeps what was sampled, so that is no contradiction.
_THINKING = re.compile(rf"{re.escape(THINK_OPEN)}.*?{re.escape(THINK_CLOSE)}\s*", re.DOTALL)


@dataclass(slots=True, frozen=True)
class TurnEnd:
    """How the template ends an assistant turn."""

    before: str
    """Text between content and end-of-turn token; mostly empty."""
    token: str
    """The end-of-turn token."""
    behind: str
    """Text behind it that belongs to the turn: the line break of ChatML."""


def find_turn_end(template: ChatTemplate, encoder: TextEncoder) -> TurnEnd:
    """The end of a turn without calls. Raises `UserError` where no added token ends it."""
    text = template.render([_USER, {"role": "assistant", "content": _ASSISTANT}])
    pieces = encoder.split(_behind_assistant(text, template)[1])
    if len(pieces) != 3 or pieces[0].strip() or pieces[2].strip():
        raise UserError(
            f"The chat template of {template.name} does not end an assistant turn with one end-of-turn token: behind "
            f"the content it writes {''.join(pieces)!r}. Without one nobody can tell where a turn ends. Use a template "
            "that writes one (chat_template.jinja), and see that it is in the tokenizer as an added token."
        )
    return TurnEnd(*pieces)


def call_turn_end(template: ChatTemplate, encoder: TextEncoder) -> str | None:
    """The token that ends a turn with calls, which some families keep apart; None where the template takes no calls."""
    try:
        text = template.render([_USER, _synthetic_turn([{"role": "tool"}])])
    except UserError:
        return None
    pieces = encoder.split(_behind_assistant(text, template)[1])
    return pieces[-2] if len(pieces) > 1 and not pieces[-1].strip() else None


def text_after_turn(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], tools: ToolSchemas, behind: str
) -> str:
    """What the template writes behind the end-of-turn token for `messages`, and the next generation prompt.

    It begins with `behind` (see `TurnEnd`) where the turn ends with that. Raises `UserError` where the template changes
    what stands before them.
    """
    assistant = _synthetic_turn(messages)
    try:
        before = template.render([_USER, assistant], tools)
    except UserError:  # more than one call in a turn is refused by some
        assistant = _synthetic_turn([*messages][:1])
        before = template.render([_USER, assistant], tools)
    after = template.render([_USER, assistant, *messages], tools, generate=True)
    head, tail = _behind_assistant(before, template)
    new_head, new_tail = _behind_assistant(after, template)
    if not new_tail.startswith(tail):
        raise _unstable(template, messages, tail, new_tail)
    if _THINKING.sub("", head) != _THINKING.sub("", new_head):
        raise _unstable(template, messages, head, new_head)
    return new_tail[len(tail) - (len(behind) if tail.endswith(behind) else 0) :]


def _synthetic_turn(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The assistant turn that `messages` answer: one call for each tool result that they begin with."""
    calls = []
    for message in messages:
        if message["role"] != "tool":
            break
        function = {"name": message.get("name", "f"), "arguments": {}}
        calls.append({"id": message.get("tool_call_id", "z00000000"), "type": "function", "function": function})
    turn: dict[str, Any] = {"role": "assistant", "content": _ASSISTANT}
    return {**turn, "tool_calls": calls} if calls else turn


def _behind_assistant(text: str, template: ChatTemplate) -> tuple[str, str]:
    head, found, tail = text.rpartition(_ASSISTANT)
    if not found:
        raise UserError(
            f"The chat template of {template.name} leaves out the content of an assistant message: {text!r}. Use "
            "another template (chat_template.jinja)."
        )
    return head, tail


def _unstable(template: ChatTemplate, messages: Sequence[Mapping[str, Any]], before: str, after: str) -> UserError:
    position = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    start = max(0, position - 30)
    roles = ", ".join(str(message["role"]) for message in messages)
    return UserError(
        f"The chat template of {template.name} is not prefix-stable: when ({roles}) follows an assistant turn, it "
        f"writes {after[start : position + 60]!r} where it wrote {before[start : position + 60]!r} before. "
        "Tokens that were sampled after the one would be trained after the other. Use a template that only appends "
        "(chat_template.jinja)."
    )
