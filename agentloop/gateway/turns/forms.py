"""Read the form that a request demands of a turn: a JSON Schema of the answer, strict tools, or a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.requests import refuse
from agentloop.rendering.formats.turn_form import TurnForm

_ANY_OBJECT = {"type": "object"}


class ToolChoice(NamedTuple):
    """Whether a turn must call a tool, and which one."""

    reads_calls: bool = True
    """False if the client wants no calls."""
    must_call: bool = False
    name: str | None = None
    """The only tool that may be called; None allows all."""

    @classmethod
    def of(cls, kind: str | None, name: Any = None) -> ToolChoice:
        """Read the kind of choice, in the terms of any API. Raises `ApiError`."""
        if kind in (None, "auto"):
            return cls()
        if kind == "none":
            return cls(reads_calls=False)
        if kind in ("any", "required"):
            return cls(must_call=True)
        if kind in ("tool", "function", "custom") and isinstance(name, str):
            return cls(must_call=True, name=name)
        raise refuse("tool_choice", "It must be auto, none, required (any) or a tool by name.")


def schema_of(answer_format: Mapping[str, Any] | None, param: str) -> Mapping[str, Any] | None:
    """Return the JSON Schema of an answer's format; None if the answer is text. Raises `ApiError`.

    OpenAI's chat API puts the schema inside `json_schema`, the other APIs next to the type.
    """
    kind = answer_format.get("type") if answer_format else "text"
    if answer_format is None or kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        raise ApiError(400, f"{param}.type is {kind!r}; known: text, json_object, json_schema.", param=param)
    inside = answer_format.get("json_schema", answer_format)
    schema = inside.get("schema") if isinstance(inside, Mapping) else None
    if not isinstance(schema, Mapping):
        raise ApiError(
            400, f"{param} has no JSON Schema in `schema`. Put it there, or ask for json_object.", param=param
        )
    return schema


def form_of(answer: Mapping[str, Any] | None, strict: Collection[str], choice: ToolChoice) -> TurnForm | None:
    """Return the form of a turn; None if any is allowed. `strict` names tools whose arguments match their schemas."""
    if not choice.reads_calls:
        return None if answer is None else TurnForm(answer=answer, callable=frozenset())
    form = TurnForm(
        answer=answer,
        strict=frozenset(strict),
        must_call=choice.must_call,
        callable=None if choice.name is None else frozenset([choice.name]),
    )
    return None if form == TurnForm() else form
