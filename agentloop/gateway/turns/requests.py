"""`ModelRequest`: one call of a model, whichever dialect its client speaks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.memory import Memory
from agentloop.gateway.turns.messages import conversation_keys, key_of_tools
from agentloop.gateway.turns.unsupported import first_unsupported
from agentloop.rendering.formats.turn_form import TurnForm
from agentloop.types.messages import Message


class Body(BaseModel):
    """The fields of a body that are read, and those that are refused.

    Others are ignored, as clients send many that do not concern the model.
    """

    model_config = ConfigDict(allow_inf_nan=False, extra="allow")
    refused: ClassVar[Mapping[str, str]] = {}
    """Fields of this API alone that are not supported, each with what to do instead."""
    schema_field: ClassVar[str]
    """The field that demands a JSON Schema of the answer."""

    model: str = ""
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool | None = None


AnyBody = TypeVar("AnyBody", bound=Body)


@dataclass(slots=True, frozen=True, kw_only=True)
class ModelRequest:
    """One call of a model."""

    model: str
    """Name that the client sent; the policy answers in any case."""
    messages: Sequence[Message]
    keys: Sequence[bytes]
    """Keys of the conversation up to each message (`conversation_keys`)."""
    tools: list[dict[str, Any]]
    """Schemas of the tools; equal tools are one object."""
    reads_calls: bool = True
    """Whether calls are parsed; False if the client wants none."""
    eager: frozenset[str] = frozenset()
    """Names of the tools whose arguments a stream sends while they are sampled."""
    form: TurnForm | None = None
    """The form that the client demands; None if it demands none."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    """Number of turns to sample after the conversation; all but one are branches."""
    stream: bool = False
    options: Any = None
    """Fields of the body that only its dialect reads."""
    kept_as: str | None = None
    """Name under which later requests continue the conversation without sending it."""
    num_unkept: int = 0
    """Number of messages at the beginning that do not belong to the kept conversation."""
    sent: bytes = b""
    """Digest of the body."""
    is_retry: bool = False
    """Whether the client says that it sent this body before and got no answer."""


def read_body(kind: type[AnyBody], body: bytes) -> AnyBody:
    """Read a body. Raises an `ApiError` that names the first field that is invalid or not supported."""
    try:
        read = kind.model_validate_json(body)
    except ValidationError as error:
        param, problem = _first_problem(error)
        raise ApiError(400, f"{param or 'The body'}: {problem}.", param=param or None) from error
    if found := first_unsupported(read.model_extra or {}, kind.refused, kind.schema_field):
        raise refuse(*found)
    return read


def model_request(
    body: Body,
    memory: Memory,
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]],
    *,
    form: TurnForm | None = None,
    reads_calls: bool = True,
    **more: Any,
) -> ModelRequest:
    """Return the request of a body; `tools` are written as in OpenAI's chat API."""
    key = json.dumps(tools) if tools else ""
    messages = memory.as_sampled(messages)
    if form is not None and form.answer is not None and not tools:
        reads_calls = False  # the answer may look like a call
    return ModelRequest(
        model=body.model,
        messages=messages,
        keys=conversation_keys(messages, key_of_tools(key)),
        tools=_shared(key),
        temperature=body.temperature,
        top_p=body.top_p,
        stream=bool(body.stream),
        form=form,
        reads_calls=reads_calls,
        **more,
    )


def tool_of(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    """Return the schema of a tool as the chat templates show it."""
    schema = parameters or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": name, "description": description or "", "parameters": schema},
    }


def _first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the first invalid field and its problem.

    A field that may be a text or a list has an error for each of the two, at a place that contains the name of the
    type. The error that lies deepest is that of the type which was sent.
    """

    def place(problem: ErrorDetails) -> str:
        return ".".join(str(part) for part in problem["loc"] if not _is_type(part))

    problems = error.errors(include_url=False)
    field = tuple(takewhile(lambda part: not _is_type(part), problems[0]["loc"]))
    of_field = [problem for problem in problems if problem["loc"][: len(field)] == field]
    param = place(max(of_field, key=lambda problem: len(problem["loc"])))
    return param, ", or: ".join(problem["msg"] for problem in of_field if place(problem) == param)


def _is_type(part: str | int) -> bool:
    return str(part) == "str" or str(part).startswith("list[")


def refuse(param: str, instead: str) -> ApiError:
    """Return the error of a field that would change the tokens or the answer."""
    return ApiError(400, f"`{param}` is not supported here. {instead}", code="unsupported", param=param)


@lru_cache(maxsize=512)
def _shared(key: str) -> list[dict[str, Any]]:
    """Return one object for equal tools: renderers identify tools by their list object."""
    tools: list[dict[str, Any]] = json.loads(key) if key else []
    return tools
