"""`TurnForm`: what a client demands of the form of a turn, and the grammar of such turns in each format.

A grammar is a structural tag of xgrammar. It begins with the first sampled token, so it has thinking in it, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.formats.base import PLAIN, CallFormat, ToolSchemas

_Structure = dict[str, Any]
_SPACE: _Structure = {"type": "regex", "pattern": r"[ \n\r\t]{0,4}"}
_MAX_SPACE = 32
"""Longest white space inside of JSON: a model may write more and more of it until its turn is cut."""


@dataclass(slots=True, frozen=True)
class TurnForm:
    """The form of a turn. Thinking before it is free."""

    answer: Mapping[str, Any] | None = None
    """JSON Schema of the text; None: any text."""
    strict: frozenset[str] = frozenset()
    """Names of the tools whose arguments have to match their schemas."""
    must_call: bool = False
    """Whether the turn has to call a tool."""
    callable: frozenset[str] | None = None
    """Names of the tools that the turn may call; None: all."""

    @property
    def is_optional(self) -> bool:
        """Whether a turn of any other form would be usable: only the arguments of calls are constrained."""
        return self.answer is None and not self.must_call


@dataclass(slots=True, frozen=True)
class CallStructure:
    """How a call stands in a turn; {} is the name of the tool."""

    opening: str
    closing: str
    trigger: str
    """Beginning of `opening` that always begins a call."""
    style: str = "json"
    """Style of the arguments, a name of xgrammar's."""
    section: tuple[str, str] | None = None
    """Texts around all calls of a turn."""


_TAGGED = '{{"name": "{}", "arguments": '
STRUCTURES: dict[str, CallStructure] = {
    "hermes": CallStructure("<tool_call>\n" + _TAGGED, "}\n</tool_call>", "<tool_call>"),
    "nemotron": CallStructure("<TOOLCALL>[" + _TAGGED, "}]</TOOLCALL>", "<TOOLCALL>"),
    "phi": CallStructure("<|tool_call|>[" + _TAGGED, "}]<|/tool_call|>", "<|tool_call|>"),
    "qwen3_coder": CallStructure(
        "<tool_call>\n<function={}>\n", "\n</function>\n</tool_call>", "<tool_call>", style="qwen_xml"
    ),
    "deepseek_v3_1": CallStructure(
        "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
}
"""The formats whose calls can be constrained."""


def turn_grammar(
    form: TurnForm, call_format: CallFormat | None, tools: ToolSchemas, *, starts_in_thinking: bool
) -> str:
    """Return the grammar of turns in a format. Raises `UserError` if turns of the format cannot have this form."""
    call_format = call_format or PLAIN
    if call_format.read_turn is not None:
        raise UserError(f"Turns of the format {call_format.name} cannot be constrained.")
    answer = None if form.answer is None else json.dumps(form.answer)
    shown = [_named(tool, form) for tool in tools if form.callable is None or tool["function"]["name"] in form.callable]
    if form.must_call and not shown:
        raise UserError("The turn has to call a tool, but the request has no such tool.")
    if shown and call_format.name not in STRUCTURES:
        raise UserError(
            f"Calls in the format {call_format.name} cannot be constrained; {', '.join(STRUCTURES)} can. Ask for the "
            "form in a message, without tools or without `strict`."
        )
    return _written(call_format.name, call_format.thinking, starts_in_thinking, answer, form.must_call, tuple(shown))


def _named(tool: Mapping[str, Any], form: TurnForm) -> tuple[str, str]:
    """Return the name of a tool and the schema of its arguments."""
    function = tool["function"]
    name = function["name"]
    return name, json.dumps(function["parameters"] if name in form.strict else {"type": "object"})


@lru_cache(maxsize=256)
def _written(
    call_format: str,
    thinking: tuple[str, str],
    starts_in_thinking: bool,
    answer: str | None,
    must_call: bool,
    tools: Sequence[tuple[str, str]],
) -> str:
    answered: list[_Structure] = []
    if answer is not None and not must_call:
        answered = [_sequence(_SPACE, _json(json.loads(answer)), _SPACE)]
    if tools:
        answered.append(_calls(STRUCTURES[call_format], tools, is_alone=must_call or answer is not None))
    rest = answered[0] if len(answered) == 1 else {"type": "or", "elements": answered}
    opening, closing = thinking
    thought = {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": closing}
    if starts_in_thinking:
        form = _sequence(thought | {"begin": ""}, rest)
    else:
        form = {"type": "or", "elements": [_sequence(thought, rest), rest]}
    return json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)


def _calls(structure: CallStructure, tools: Sequence[tuple[str, str]], *, is_alone: bool) -> _Structure:
    """Return calls of these tools; alone they are all of the turn and at least one."""
    tags = [
        {
            "type": "tag",
            "begin": structure.opening.format(name),
            "content": _json(json.loads(schema), structure.style),
            "end": structure.closing,
        }
        for name, schema in tools
    ]
    trigger = structure.trigger
    if structure.section is not None:
        inside = {"type": "tags_with_separator", "tags": tags, "separator": "", "at_least_one": True}
        trigger, end = structure.section
        tags = [{"type": "tag", "begin": trigger, "content": inside, "end": end}]
    if is_alone:
        found = {"type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": True}
        return _sequence(_SPACE, found) if structure.section is None else _sequence(_SPACE, tags[0])
    return {"type": "triggered_tags", "triggers": [trigger], "tags": tags}


def _json(schema: Mapping[str, Any], style: str = "json") -> _Structure:
    return {"type": "json_schema", "json_schema": schema, "style": style, "max_whitespace_cnt": _MAX_SPACE}


def _sequence(*elements: _Structure) -> _Structure:
    return {"type": "sequence", "elements": list(elements)}
