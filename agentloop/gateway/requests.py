"""`ChatRequest`: the body of a chat completion, checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentloop.gateway.chat_messages import conversation_keys, key_of_tools, read_messages
from agentloop.gateway.errors import ApiError
from agentloop.types.messages import Message


class _Function(BaseModel):
    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Body(BaseModel):
    """The fields of a body that are read; others are ignored, as clients send much that does not concern the model."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: str = ""
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    # Refused, since they would change the sampled tokens:
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    functions: list[Any] | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class ChatRequest:
    """One call of a model."""

    model: str
    """Name that the client sent; the policy answers in any case."""
    messages: Sequence[Message]
    keys: Sequence[bytes]
    """Keys of the conversation up to each message (`conversation_keys`)."""
    tools: list[dict[str, Any]]
    """Schemas of the tools; equal tools are one object."""
    reads_calls: bool
    """Whether calls are parsed; False for `tool_choice: none`."""
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    stop: tuple[str, ...]
    seed: int | None
    n: int
    """Number of turns to sample after the conversation; all but one are branches."""
    logprobs: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool

    @classmethod
    def parse(cls, body: bytes) -> ChatRequest:
        """Read a body. Raises `ApiError` if it is invalid or uses unsupported fields."""
        try:
            read = _Body.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            param = ".".join(map(str, first["loc"]))
            raise ApiError(400, f"{param or 'The body'}: {first['msg']}.", param=param or None) from error
        _refuse_unsupported(read)
        tools = [tool.model_dump() for tool in read.tools or ()]
        key = json.dumps(tools) if tools else ""
        return cls(
            model=read.model,
            messages=read_messages(read.messages),
            keys=conversation_keys(read.messages, key_of_tools(key)),
            tools=_shared(key),
            reads_calls=read.tool_choice != "none",
            max_tokens=read.max_completion_tokens or read.max_tokens,
            temperature=read.temperature,
            top_p=read.top_p,
            top_k=None if read.top_k is None else max(read.top_k, 0),
            stop=tuple(filter(None, [read.stop] if isinstance(read.stop, str) else read.stop or ())),
            seed=read.seed,
            n=read.n or 1,
            logprobs=bool(read.logprobs),
            stream=bool(read.stream),
            include_usage=read.stream_options is not None and read.stream_options.include_usage,
            return_token_ids=bool(read.return_token_ids),
        )


_NO_FORMAT = (
    "A grammar changes the distribution of the tokens, so their log-probabilities would not be those of the learner. "
    "Request the format in a message, and let the reward judge it."
)


@lru_cache(maxsize=512)
def _shared(key: str) -> list[dict[str, Any]]:
    """Return one object for equal tools: renderers identify tools by their list object."""
    tools: list[dict[str, Any]] = json.loads(key) if key else []
    return tools


def _refuse_unsupported(body: _Body) -> None:
    """Raise `ApiError` for fields that would change the sampled tokens and are not supported."""
    plain = body.response_format is None or body.response_format.get("type") == "text"
    for param, is_fine, instead in (
        ("top_logprobs", not body.top_logprobs, "`logprobs` gives those of the sampled tokens."),
        ("presence_penalty", not body.presence_penalty, "Remove it."),
        ("frequency_penalty", not body.frequency_penalty, "Remove it."),
        ("logit_bias", not body.logit_bias, "Remove it."),
        ("response_format", plain, _NO_FORMAT),
        ("functions", not body.functions, "Use `tools`."),
        ("tool_choice", body.tool_choice in (None, "auto", "none"), "It may be auto or none."),
    ):
        if not is_fine:
            raise ApiError(400, f"`{param}` is not supported here. {instead}", code="unsupported", param=param)
