"""Anthropic's Messages API."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from agentloop.gateway.dialects.base import event
from agentloop.gateway.turns.completions import Completion
from agentloop.gateway.turns.deltas import CallDelta, Delta
from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.forms import ToolChoice, form_of, schema_of
from agentloop.gateway.turns.memory import Memory
from agentloop.gateway.turns.messages import (
    Images,
    call_of,
    joined,
    name_of,
    names_of_calls,
    objects_of,
    text_in,
    with_one_system_message,
)
from agentloop.gateway.turns.requests import Body, ModelRequest, model_request, read_body, tool_of
from agentloop.types.messages import Content, ImagePart, Message, TextPart, UnfinishedCall

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer

_BILLING = re.compile(r"^\s*x-anthropic-billing-header:[^\n]*\n?")
"""A line that Claude Code writes into the system prompt. It differs in each request, so no history would match."""

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class _Tool(BaseModel):
    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None


class _ToolChoice(BaseModel):
    type: str
    name: str | None = None


class _Format(BaseModel):
    format: dict[str, Any] | None = None


class _Message(BaseModel):
    role: str
    content: str | list[dict[str, Any]]


class _Thread(BaseModel):
    type: Literal["create", "continue"]
    previous_message_id: str | None = None


class _Body(Body):
    refused: ClassVar[Mapping[str, str]] = {
        "max_completion_tokens": "Use `max_tokens`.",
        "max_output_tokens": "Use `max_tokens`.",
        "mcp_servers": "Run the tools in the agent.",
        "n": "Send the request several times.",
        "output_format": "Use `output_config.format`.",
        "response_format": "Use `output_config.format`.",
        "stop": "Use `stop_sequences`.",
    }
    schema_field: ClassVar[str] = "`output_config.format`"

    messages: list[_Message] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    top_k: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    stop_sequences: list[str] | None = None
    output_config: _Format | None = None
    thread: _Thread | None = None


@dataclass(slots=True, frozen=True)
class _Options:
    name: str
    tools: Sequence[_Tool]


class Anthropic:
    """`POST /v1/messages`."""

    def read(self, body: bytes, memory: Memory | None = None) -> ModelRequest:
        read = read_body(_Body, body)
        choice = ToolChoice.of(read.tool_choice.type, read.tool_choice.name) if read.tool_choice else ToolChoice()
        answer = schema_of(read.output_config.format if read.output_config else None, "output_config.format")
        memory = memory or Memory()
        earlier, tools = _earlier(read, memory)
        name = f"msg_{secrets.token_hex(12)}"
        return model_request(
            read,
            memory,
            _read_messages(read, earlier),
            [_read_tool(tool, index) for index, tool in enumerate(tools)],
            form=form_of(answer, [tool.name for tool in tools if tool.strict], choice),
            reads_calls=choice.reads_calls,
            eager=frozenset(tool.name for tool in tools if tool.eager_input_streaming),
            max_tokens=read.max_tokens,
            top_k=read.top_k,
            stop=tuple(filter(None, read.stop_sequences or ())),
            options=_Options(name, tools),
            kept_as=None if read.thread is None else name,
        )

    def whole(self, completions: Sequence[Completion], renderer: Renderer) -> dict[str, Any]:
        (completion,) = completions
        return _head(completion.request) | {
            "content": _blocks(completion),
            **_stop(completion),
            "usage": _usage(completion),
        }

    def events(self, request: ModelRequest, renderer: Renderer) -> _Events:
        return _Events(request)

    def error(self, error: ApiError) -> dict[str, Any]:
        kind = _ERRORS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
        # These words tell clients to shorten the conversation.
        too_long = "prompt is too long: " if error.code == "context_length_exceeded" else ""
        details = {"details": {"error_code": error.code}} if error.code else {}
        return {"type": "error", "error": {"type": kind, "message": too_long + error.message, **details}}


class _Events:
    """The blocks of the answer come one after another, so at most one is open."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._index = -1
        self._open: str | None = None

    def begin(self) -> str:
        message = _head(self._request) | {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},  # known at the end
        }
        return event({"type": "message_start", "message": message})

    def more(self, index: int, delta: Delta) -> str:
        if isinstance(delta, CallDelta):
            return self._more_of_call(delta)
        if delta.kind == "content":
            text = self._enter("text", {"type": "text", "text": ""})
            return text + self._delta({"type": "text_delta", "text": delta.text})
        text = self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        return text + self._delta({"type": "thinking_delta", "thinking": delta.text})

    def silent(self) -> str:
        return event({"type": "ping"})

    def end(self, index: int, completion: Completion) -> str:
        return self._leave()

    def close(self, completions: Sequence[Completion]) -> str:
        (completion,) = completions
        usage = _usage(completion)
        last: dict[str, Any] = {"type": "message_delta", "delta": _stop(completion), "usage": usage}
        return event(last) + event({"type": "message_stop"})

    def failed(self, error: ApiError) -> str:
        return event(Anthropic().error(error))

    def _more_of_call(self, delta: CallDelta) -> str:
        text, call = "", delta.call
        if delta.begins:
            text += self._enter("call", {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        if delta.arguments:
            text += self._delta({"type": "input_json_delta", "partial_json": delta.arguments})
        return text + (self._leave() if delta.ends else "")

    def _enter(self, kind: str, block: dict[str, Any]) -> str:
        if self._open == kind:
            return ""
        left = self._leave()
        self._open = kind
        self._index += 1
        return left + event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _leave(self) -> str:
        if self._open is None:
            return ""
        signature = ""
        if self._open == "thinking":
            signature = self._delta({"type": "signature_delta", "signature": _SIGNATURE})
        self._open = None
        return signature + event({"type": "content_block_stop", "index": self._index})

    def _delta(self, delta: dict[str, Any]) -> str:
        return event({"type": "content_block_delta", "index": self._index, "delta": delta})


_SIGNATURE = "agentloop"
"""Clients omit thinking without a signature when they send it back."""


def models(name: str) -> dict[str, Any]:
    """Return the list of models as the clients of both APIs read it."""
    entry: dict[str, Any] = {"id": name, "object": "model", "type": "model", "display_name": name}
    entry |= {"owned_by": "agentloop", "created": 0, "created_at": "1970-01-01T00:00:00Z"}
    return {"object": "list", "data": [entry], "has_more": False, "first_id": name, "last_id": name}


def _read_tool(tool: _Tool, index: int) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        where = f"tools[{index}]"
        raise ApiError(
            400,
            f"{where} is {tool.type!r}, which Anthropic's service runs. Only tools with an input_schema work here.",
            param=where,
        )
    return tool_of(tool.name, tool.description, tool.input_schema)


def _earlier(body: _Body, memory: Memory) -> tuple[Sequence[Message], Sequence[_Tool]]:
    """Return the messages that a request does not send because it continues a thread, and the tools."""
    if body.thread is None or body.thread.type == "create":
        return (), body.tools or ()
    for field in ("system", "tools"):
        if getattr(body, field) is not None:
            raise ApiError(
                400, f"`{field}` belongs to the request that creates the thread. Leave it out here.", param=field
            )
    name = body.thread.previous_message_id
    kept = memory.conversations.get(name) if name else None
    if kept is None or not isinstance(kept.options, _Options):
        # At this code the official client begins another thread with the whole history.
        raise ApiError(
            404,
            f"This episode has no message {name!r} of a thread to continue. Send the whole history.",
            code="thread_not_found",
            param="thread.previous_message_id",
        )
    return kept.messages, kept.options.tools


def _read_messages(body: _Body, earlier: Sequence[Message]) -> list[Message]:
    messages = [*earlier]
    if system := _system(body.system):
        messages.append({"role": "system", "content": system})
    names = names_of_calls(earlier)
    images = Images()
    for index, message in enumerate(body.messages):
        where = f"messages[{index}]"
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        if message.role == "assistant":
            messages.append(_read_answer(blocks, where, names))
        elif message.role == "user":
            messages += _read_user(blocks, where, names, images)
        elif message.role == "system":
            messages.append({"role": "system", "content": joined(_parts(blocks, where, images), "\n")})
        else:
            problem = f"{where} has the role {message.role!r}; known: user, assistant, system."
            raise ApiError(400, problem, param=where)
    if messages[-1]["role"] == "assistant":
        raise ApiError(
            400,
            "The last message is from the assistant. The gateway cannot continue it, because the model did not sample "
            "its tokens. End with a message from the user.",
            param="messages",
        )
    return with_one_system_message(messages)


def _system(raw: str | list[dict[str, Any]] | None) -> str:
    blocks = [{"type": "text", "text": raw}] if isinstance(raw, str) else raw or ()
    texts = []
    for block in blocks:
        if block.get("type") != "text":
            raise _unknown("system", block.get("type"), "text")
        texts.append(text_in(block, "text", "system"))
    return "\n".join(filter(None, (_BILLING.sub("", text) for text in texts)))


def _read_answer(blocks: Sequence[Mapping[str, Any]], where: str, names: dict[str, str]) -> Message:
    text, thinking, calls = "", "", []
    for index, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text":
            text += text_in(block, "text", where)
        elif kind == "thinking":
            thinking += text_in(block, "thinking", where)
        elif kind == "tool_use":
            call = call_of(name_of(block, f"{where}.content[{index}]"), block.get("input") or {}, block.get("id"))
            names[call["id"]] = call["function"]["name"]
            calls.append(call)
        else:
            raise _unknown(where, kind, "text, thinking, tool_use")
    message: Message = {"role": "assistant", "content": text}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    return message


def _read_user(
    blocks: Sequence[Mapping[str, Any]], where: str, names: Mapping[str, str], images: Images
) -> list[Message]:
    """Read a message of the user. Each result becomes a message, as do the blocks between and after results."""
    messages: list[Message] = []
    others: list[Mapping[str, Any]] = []

    def flush() -> None:
        if others:
            messages.append({"role": "user", "content": joined(_parts(others, where, images), "\n")})
            others.clear()

    for block in blocks:
        if block.get("type") != "tool_result":
            others.append(block)
            continue
        flush()
        call_id = str(block.get("tool_use_id", ""))
        message: Message = {"role": "tool", "content": _result(block, where, images), "tool_call_id": call_id}
        if name := names.get(call_id):
            message["name"] = name
        messages.append(message)
    flush()
    return messages or [{"role": "user", "content": ""}]


def _result(block: Mapping[str, Any], where: str, images: Images) -> Content:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return joined(_parts(objects_of(content, "content", where), where, images), "\n")


def _parts(blocks: Sequence[Mapping[str, Any]], where: str, images: Images) -> list[TextPart | ImagePart]:
    return [_part(block, where, images) for block in blocks]


def _part(block: Mapping[str, Any], where: str, images: Images) -> TextPart | ImagePart:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": text_in(block, "text", where)}
    if kind != "image":
        raise _unknown(where, kind, "text, image, tool_result")
    source = block.get("source")
    if not isinstance(source, Mapping) or source.get("type") != "base64":
        return images.part(None, where)
    return images.part(f"data:{source.get('media_type')};base64,{source.get('data')}", where)


def _unknown(where: str, kind: Any, known: str) -> ApiError:
    return ApiError(400, f"A block of {where} has the type {kind!r}; known: {known}.", param=where)


def _head(request: ModelRequest) -> dict[str, Any]:
    return {"id": request.options.name, "type": "message", "role": "assistant", "model": request.model}


def _blocks(completion: Completion) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if thinking := completion.parsed.reasoning:
        blocks.append({"type": "thinking", "thinking": thinking, "signature": _SIGNATURE})
    if text := completion.text:
        blocks.append({"type": "text", "text": text})
    for call in completion.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments})
    return blocks


def _stop(completion: Completion) -> dict[str, Any]:
    if completion.is_cut:
        reason = "max_tokens"
    elif any(isinstance(call, UnfinishedCall) for call in completion.calls):
        reason = "end_turn"  # clients complete the input themselves, so they must not run the call
    elif completion.calls:
        reason = "tool_use"
    else:
        reason = "stop_sequence" if completion.stopped_by else "end_turn"
    return {"stop_reason": reason, "stop_sequence": completion.stopped_by if reason == "stop_sequence" else None}


def _usage(completion: Completion) -> dict[str, int]:
    return {"input_tokens": len(completion.prompt), "output_tokens": len(completion.generation.ids)}
