"""OpenAI's chat completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import BaseModel, Field

from agentloop.gateway.dialects.base import KEEP_ALIVE, event
from agentloop.gateway.turns.completions import ClientCall, Completion, arguments_for_clients
from agentloop.gateway.turns.deltas import Delta, TextDelta
from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.forms import ToolChoice, form_of, schema_of
from agentloop.gateway.turns.memory import Memory
from agentloop.gateway.turns.messages import Images, arguments_of, call_of, joined, text_in
from agentloop.gateway.turns.requests import Body, ModelRequest, model_request, read_body, tool_of
from agentloop.types.messages import Content, ImagePart, Message, TextPart

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class _Function(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Body(Body):
    refused: ClassVar[Mapping[str, str]] = {
        "functions": "Use `tools`.",
        "max_output_tokens": "Use `max_completion_tokens`.",
        "output_config": "Use `response_format`.",
        "stop_sequences": "Use `stop`.",
        "top_logprobs": "`logprobs` gives those of the sampled tokens.",
    }
    schema_field: ClassVar[str] = "`response_format`"

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    top_k: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    response_format: dict[str, Any] | None = None


@dataclass(slots=True, frozen=True)
class _Options:
    logprobs: bool
    include_usage: bool
    return_token_ids: bool


class Chat:
    """`POST /v1/chat/completions`."""

    def read(self, body: bytes, memory: Memory | None = None) -> ModelRequest:
        read = read_body(_Body, body)
        choice = _tool_choice(read.tool_choice)
        strict = [tool.function.name for tool in read.tools or () if tool.function.strict]
        return model_request(
            read,
            memory or Memory(),
            read_messages(read.messages),
            [tool_of(t.function.name, t.function.description, t.function.parameters) for t in read.tools or ()],
            form=form_of(schema_of(read.response_format, "response_format"), strict, choice),
            reads_calls=choice.reads_calls,
            eager=frozenset(tool.function.name for tool in read.tools or ()),
            max_tokens=read.max_completion_tokens or read.max_tokens,
            top_k=None if read.top_k is None else max(read.top_k, 0),
            stop=tuple(filter(None, [read.stop] if isinstance(read.stop, str) else read.stop or ())),
            seed=read.seed,
            n=read.n or 1,
            options=_Options(
                logprobs=bool(read.logprobs),
                include_usage=read.stream_options is not None and read.stream_options.include_usage,
                return_token_ids=bool(read.return_token_ids),
            ),
        )

    def whole(self, completions: Sequence[Completion], renderer: Renderer) -> dict[str, Any]:
        first = completions[0]
        choices = []
        for index, completion in enumerate(completions):
            choice = {
                "index": index,
                "message": _message(completion),
                "finish_reason": _finish_reason(completion),
                "logprobs": _logprobs(completion, renderer),
            }
            if completion.request.options.return_token_ids:
                choice["token_ids"] = list(completion.generation.ids)
            choices.append(choice)
        answer = _head(first.request, "chat.completion", first.name, first.created)
        if first.request.options.return_token_ids:
            answer["prompt_token_ids"] = list(first.prompt)
        return answer | {"choices": choices, "usage": _usage(completions)}

    def events(self, request: ModelRequest, renderer: Renderer) -> _Events:
        return _Events(request, renderer)

    def error(self, error: ApiError) -> dict[str, Any]:
        return openai_error(error)


class _Events:
    def __init__(self, request: ModelRequest, renderer: Renderer) -> None:
        self._request, self._renderer = request, renderer
        self._name, self._created = secrets.token_hex(8), int(time.time())

    def begin(self) -> str:
        return "".join(self._delta(index, {"role": "assistant", "content": ""}) for index in range(self._request.n))

    def more(self, index: int, delta: Delta) -> str:
        if isinstance(delta, TextDelta):
            return self._delta(index, {delta.kind: delta.text})
        call: dict[str, Any] = {"function": {"arguments": delta.arguments}}
        if delta.begins:
            call = _call(delta.call, delta.arguments)
        elif not delta.arguments:
            return ""
        return self._delta(index, {"tool_calls": [{"index": delta.number, **call}]})

    def silent(self) -> str:
        return KEEP_ALIVE

    def end(self, index: int, completion: Completion) -> str:
        last: dict[str, Any] = {"index": index, "delta": {}, "finish_reason": _finish_reason(completion)}
        last["logprobs"] = _logprobs(completion, self._renderer)
        if self._request.options.return_token_ids:
            last["token_ids"] = list(completion.generation.ids)
        return self._event([last])

    def close(self, completions: Sequence[Completion]) -> str:
        usage = self._event([], usage=_usage(completions)) if self._request.options.include_usage else ""
        return usage + "data: [DONE]\n\n"

    def failed(self, error: ApiError) -> str:
        return event(openai_error(error), is_named=False)

    def _delta(self, index: int, delta: Mapping[str, Any]) -> str:
        return self._event([{"index": index, "delta": delta, "finish_reason": None}])

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> str:
        whole = _head(self._request, "chat.completion.chunk", self._name, self._created) | {"choices": choices} | more
        return event(whole, is_named=False)


def openai_error(error: ApiError) -> dict[str, Any]:
    """Return an error as OpenAI's APIs write it."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def read_messages(raw: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages in the form that renderers accept. Raises an `ApiError` that names the invalid message."""
    names: dict[str, str] = {}
    images = Images()
    return [_read(item, f"messages[{index}]", names, images) for index, item in enumerate(raw)]


def _read(raw: Mapping[str, Any], where: str, names: dict[str, str], images: Images) -> Message:
    """Read a message. `names` maps ids of earlier calls to functions: templates may show them beside the result."""
    role = _ROLES.get(str(raw.get("role")))
    if role is None:
        raise ApiError(400, f"{where} has the role {raw.get('role')!r}; known: {', '.join(_ROLES)}.", param=where)
    message = cast(Message, {"role": role, "content": _content(raw.get("content"), where, images)})
    if field := next(filter(raw.get, ("reasoning_content", "reasoning")), None):  # servers use either name
        message["reasoning_content"] = text_in(raw, field, where)
    if raw.get("tool_calls"):
        if not isinstance(raw["tool_calls"], list):
            raise ApiError(400, f"`tool_calls` of {where} must be a list of objects.", param=where)
        message["tool_calls"] = [_read_call(call, where) for call in raw["tool_calls"]]
        names.update((call["id"], call["function"]["name"]) for call in message["tool_calls"])
    if role == "tool":
        call_id = str(raw.get("tool_call_id", ""))
        message["tool_call_id"] = call_id
        if name := raw.get("name") or names.get(call_id):
            message["name"] = str(name)
    elif raw.get("name"):
        message["name"] = str(raw["name"])
    return message


def _content(raw: Any, where: str, images: Images) -> Content:
    if raw is None or isinstance(raw, str):
        return raw or ""
    if not isinstance(raw, list):
        raise ApiError(400, f"The content of {where} is neither text nor a list of parts.", param=where)
    return joined([_part(part, where, images) for part in raw])


def _part(raw: Any, where: str, images: Images) -> TextPart | ImagePart:
    kind = raw.get("type") if isinstance(raw, Mapping) else None
    if kind in ("text", "refusal"):
        return {"type": "text", "text": text_in(raw, kind, where)}
    if kind != "image_url":
        raise ApiError(400, f"A part of {where} has the type {kind!r}; known: text, image_url.", param=where)
    url = raw.get("image_url")
    return images.part(url.get("url") if isinstance(url, Mapping) else url, where)


def _read_call(raw: Any, where: str) -> dict[str, Any]:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ApiError(400, f"A tool call of {where} has no function with a name.", param=where)
    return call_of(function["name"], arguments_of(function.get("arguments")), raw.get("id"))


def _tool_choice(raw: Any) -> ToolChoice:
    if not isinstance(raw, Mapping):
        return ToolChoice.of(raw)
    function = raw.get("function")
    return ToolChoice.of(raw.get("type"), function.get("name") if isinstance(function, Mapping) else None)


def _message(completion: Completion) -> dict[str, Any]:
    calls = [_call(call, arguments_for_clients(call)) for call in completion.calls]
    text = completion.text
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
    if completion.parsed.reasoning is not None:
        message["reasoning_content"] = completion.parsed.reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call: ClientCall, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _finish_reason(completion: Completion) -> str:
    if completion.is_cut:
        return "length"
    return "tool_calls" if completion.calls else "stop"


def _usage(completions: Sequence[Completion]) -> dict[str, int]:
    """Count the tokens of a request. Its prompt counts once."""
    num_prompt = len(completions[0].prompt)
    num_sampled = sum(len(completion.generation.ids) for completion in completions)
    return {"prompt_tokens": num_prompt, "completion_tokens": num_sampled, "total_tokens": num_prompt + num_sampled}


def _head(request: ModelRequest, kind: str, name: str, created: int) -> dict[str, Any]:
    """Return the first fields of an answer and of each part of a stream."""
    return {"id": f"chatcmpl-{name}", "object": kind, "created": created, "model": request.model}


def _logprobs(completion: Completion, renderer: Renderer) -> dict[str, Any] | None:
    """Return the logprob of each sampled token, including the token that ends the turn, which is also trained."""
    if not completion.request.options.logprobs:
        return None
    generation = completion.generation
    texts = [renderer.decode([token]) for token in generation.ids]
    return {
        "content": [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in zip(texts, generation.logprobs, strict=True)
        ],
        "refusal": None,
    }
