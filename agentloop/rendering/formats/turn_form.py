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
_ANY_TEXT: _Structure = {"type": "any_text"}
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
    others: tuple[tuple[str, str], ...] = ()
    """Other pairs of `opening` and `closing`."""
    after_number: str | None = None
    """Text between the number of a call, which follows `opening`, and its arguments; None: calls have no numbers."""


_TAGGED = '{{"name": "{}", "arguments": '
_DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
STRUCTURES: dict[str, CallStructure] = {
    "hermes": CallStructure("<tool_call>\n" + _TAGGED, "}\n</tool_call>", "<tool_call>"),
    "nemotron": CallStructure("<TOOLCALL>[" + _TAGGED, "}]</TOOLCALL>", "<TOOLCALL>"),
    "phi": CallStructure("<|tool_call|>[" + _TAGGED, "}]<|/tool_call|>", "<|tool_call|>"),
    "qwen3_coder": CallStructure(
        "<tool_call>\n<function={}>\n", "\n</function>\n</tool_call>", "<tool_call>", style="qwen_xml"
    ),
    "glm": CallStructure("<tool_call>{}\n", "\n</tool_call>", "<tool_call>", style="glm_xml"),
    "minimax": CallStructure(
        '<invoke name="{}">\n',
        "\n</invoke>\n",
        "<invoke",
        style="minimax_xml",
        section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
    ),
    "deepseek_v3_2": CallStructure(
        '<｜DSML｜invoke name="{}">\n',
        "\n</｜DSML｜invoke>\n",
        "<｜DSML｜invoke",
        style="deepseek_xml",
        section=("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
    ),
    "deepseek_v3_1": CallStructure(
        "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>",
        section=_DEEPSEEK_SECTION,
    ),
    "deepseek_r1": CallStructure(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>",
        section=_DEEPSEEK_SECTION,
    ),
    "kimi": CallStructure(
        "<|tool_call_begin|>functions.{}:",
        "<|tool_call_end|>",
        "<|tool_call_begin|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        after_number="<|tool_call_argument_begin|>",
    ),
    "seed": CallStructure(
        "<seed:tool_call>\n<function={}>\n", "\n</function>\n</seed:tool_call>", "<seed:tool_call>", style="qwen_xml"
    ),
    "mistral": CallStructure("[TOOL_CALLS]{}[ARGS]", "", "[TOOL_CALLS]", others=(("[TOOL_CALLS][" + _TAGGED, "}]"),)),
    "llama3": CallStructure('{{"name": "{}", "parameters": ', "}", '{"name": '),
}
"""The formats whose calls can be constrained, besides harmony."""
CONSTRAINED = tuple(sorted([*STRUCTURES, "harmony"]))
"""Names of the formats whose calls can be constrained."""


def turn_grammar(
    form: TurnForm, call_format: CallFormat | None, tools: ToolSchemas, *, starts_in_thinking: bool
) -> str:
    """Return the grammar of turns in a format. Raises `UserError` if turns of the format cannot have this form."""
    call_format = call_format or PLAIN
    answer = None if form.answer is None else json.dumps(form.answer)
    shown = [_named(tool, form) for tool in tools if form.callable is None or tool["function"]["name"] in form.callable]
    if form.must_call and not shown:
        raise UserError("The turn has to call a tool, but the request has no such tool.")
    if shown and call_format.name not in CONSTRAINED:
        raise UserError(
            f"Calls in the format {call_format.name} cannot be constrained; {', '.join(CONSTRAINED)} can. Ask for the "
            "form in a message, without tools or without `strict`."
        )
    if call_format.name == "harmony":
        return _harmony(answer, form.must_call, tuple(shown))
    thinking = None if call_format.read_turn is not None else call_format.thinking
    return _written(call_format.name, thinking, starts_in_thinking, answer, form.must_call, tuple(shown))


def _named(tool: Mapping[str, Any], form: TurnForm) -> tuple[str, str]:
    """Return the name of a tool and the schema of its arguments."""
    function = tool["function"]
    name = function["name"]
    return name, json.dumps(function["parameters"] if name in form.strict else {"type": "object"})


@lru_cache(maxsize=256)
def _written(
    call_format: str,
    thinking: tuple[str, str] | None,
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
    rest = _any_of(answered)
    if thinking is None:
        return _tag_of(rest)
    opening, closing = thinking
    thought = {"type": "tag", "begin": opening, "content": _ANY_TEXT, "end": closing}
    if starts_in_thinking:
        return _tag_of(_sequence(thought | {"begin": ""}, rest))
    return _tag_of(_any_of([_sequence(thought, rest), rest]))


@lru_cache(maxsize=256)
def _harmony(answer: str | None, must_call: bool, tools: Sequence[tuple[str, str]]) -> str:
    """Return the grammar of turns of gpt-oss: thinking and remarks, then an answer or one call, which ends the turn."""
    next_message = "<|end|><|start|>assistant"
    before = [
        {"type": "tag", "begin": f"<|channel|>{channel}<|message|>", "content": _ANY_TEXT, "end": next_message}
        for channel in (("analysis",) if answer is not None and not must_call else ("analysis", "commentary"))
    ]
    last: list[_Structure] = []
    if not must_call:
        text = _ANY_TEXT if answer is None else _sequence(_SPACE, _json(json.loads(answer)), _SPACE)
        last.append(_sequence(_text("<|channel|>final<|message|>"), text))
    for name, schema in tools:
        for header in (f"<|channel|>commentary to=functions.{name} ", f" to=functions.{name}<|channel|>commentary "):
            last.append(_sequence(_text(f"{header}<|constrain|>json<|message|>"), _json(json.loads(schema))))
    return _tag_of(_sequence({"type": "star", "content": _any_of(before)}, _any_of(last)))


def _calls(structure: CallStructure, tools: Sequence[tuple[str, str]], *, is_alone: bool) -> _Structure:
    """Return calls of these tools; alone they are all of the turn and at least one."""
    tags = [
        {
            "type": "tag",
            "begin": opening.format(name),
            "content": _arguments(structure, schema),
            "end": closing,
        }
        for opening, closing in ((structure.opening, structure.closing), *structure.others)
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


def _arguments(structure: CallStructure, schema: str) -> _Structure:
    arguments = _json(json.loads(schema), structure.style)
    if structure.after_number is None:
        return arguments
    return _sequence({"type": "regex", "pattern": r"[0-9]{1,3}"}, _text(structure.after_number), arguments)


def _json(schema: Mapping[str, Any], style: str = "json") -> _Structure:
    space = _MAX_SPACE if style == "json" else 1  # in tags, it would be a part of the values
    return {"type": "json_schema", "json_schema": schema, "style": style, "max_whitespace_cnt": space}


def _text(text: str) -> _Structure:
    return {"type": "const_string", "value": text}


def _any_of(forms: list[_Structure]) -> _Structure:
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}


def _tag_of(form: _Structure) -> str:
    return json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)


def _sequence(*elements: _Structure) -> _Structure:
    return {"type": "sequence", "elements": list(elements)}
