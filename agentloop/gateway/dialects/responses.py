"""OpenAI's Responses API: its bodies, answers and streams."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, Field

from agentloop.gateway.dialects.base import KEEP_ALIVE, event
from agentloop.gateway.dialects.chat import openai_error
from agentloop.gateway.dialects.responses_input import TEXT_ARGUMENT, Items, Tools
from agentloop.gateway.turns.completions import ClientCall, Completion, arguments_for_clients
from agentloop.gateway.turns.deltas import CallDelta, Delta
from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.forms import ToolChoice, form_of, schema_of
from agentloop.gateway.turns.memory import Memory
from agentloop.gateway.turns.messages import with_one_system_message
from agentloop.gateway.turns.requests import Body, ModelRequest, model_request, read_body
from agentloop.types.messages import Message, UnfinishedCall

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer


class _Text(BaseModel):
    format: dict[str, Any] | None = None


class _Body(Body):
    refused: ClassVar[Mapping[str, str]] = {
        "background": "Remove it.",
        "conversation": "Use `previous_response_id`, or send the whole input.",
        "max_completion_tokens": "Use `max_output_tokens`.",
        "max_tokens": "Use `max_output_tokens`.",
        "n": "Send the request several times.",
        "prompt": "Send the whole input.",
        "response_format": "Use `text.format`.",
        "stop": "Set sampling.stop_strings in the config of the run.",
    }
    schema_field: ClassVar[str] = "`text.format`"

    input: str | list[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    previous_response_id: str | None = None
    store: bool | None = None
    text: _Text | None = None


@dataclass(slots=True, frozen=True)
class _Options:
    name: str
    created: int
    given: Mapping[str, Any]
    """Fields of the body that the answer repeats."""
    tools: Tools


class Responses:
    """`POST /v1/responses`."""

    def read(self, body: bytes, memory: Memory | None = None) -> ModelRequest:
        read = read_body(_Body, body)
        tools = Tools()
        for index, tool in enumerate(read.tools or ()):
            tools.read(tool, f"tools[{index}]")
        choice = _tool_choice(read.tool_choice)
        answer = schema_of(read.text.format if read.text else None, "text.format")
        instructions: list[Message] = [{"role": "system", "content": read.instructions}] if read.instructions else []
        messages = [*instructions, *_earlier(read.previous_response_id, memory)]
        Items(messages).read(read.input)
        messages = with_one_system_message(messages)
        name = f"resp_{secrets.token_hex(12)}"
        given = {
            "instructions": read.instructions,
            "tools": read.tools or [],
            "text": read.text.model_dump(exclude_none=True) if read.text else {"format": {"type": "text"}},
            "tool_choice": read.tool_choice or "auto",
            "parallel_tool_calls": read.parallel_tool_calls is not False,
            "temperature": read.temperature,
            "top_p": read.top_p,
            "max_output_tokens": read.max_output_tokens,
            "previous_response_id": read.previous_response_id,
            "store": read.store is not False,
        }
        return model_request(
            read,
            memory or Memory(),
            messages,
            tools.schemas,
            form=form_of(answer, tools.strict, choice),
            reads_calls=choice.reads_calls,
            eager=tools.functions,
            max_tokens=read.max_output_tokens,
            options=_Options(name, int(time.time()), given, tools),
            kept_as=None if read.store is False else name,
            num_unkept=len(instructions),
        )

    def whole(self, completions: Sequence[Completion], renderer: Renderer) -> dict[str, Any]:
        (completion,) = completions
        request = completion.request
        return _response(request, _output(completion), completion)

    def events(self, request: ModelRequest, renderer: Renderer) -> _Events:
        return _Events(request)

    def error(self, error: ApiError) -> dict[str, Any]:
        return openai_error(error)


class _Events:
    """The items of the answer come one after another, so at most one is open."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._number = -1
        self._items: list[dict[str, Any]] = []
        self._open: _OpenText | None = None

    def begin(self) -> str:
        response = _response(self._request, [], None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def more(self, index: int, delta: Delta) -> str:
        if isinstance(delta, CallDelta):
            return self._more_of_call(delta)
        text = self._enter("message" if delta.kind == "content" else "reasoning")
        assert self._open is not None
        self._open.text += delta.text
        return text + self._part_event(f"response.{self._open.part}.delta", delta=delta.text)

    def _more_of_call(self, delta: CallDelta) -> str:
        item = _call_item(delta.call, self._request.options.tools)
        filled = "input" if item["type"] == "custom_tool_call" else "arguments"
        kind = "custom_tool_call_input" if filled == "input" else "function_call_arguments"
        place = {"item_id": item["id"], "output_index": len(self._items)}
        text = ""
        if delta.begins:
            text += self._leave() + self._added(item | {filled: "", "status": "in_progress"})
            place["output_index"] = len(self._items)
        if new := item["input"] if filled == "input" else delta.arguments:
            text += self._event(f"response.{kind}.delta", delta=new, **place)
        if not delta.ends:
            return text
        text += self._event(f"response.{kind}.done", **{filled: item[filled]}, **place)
        return text + self._done(item)

    def silent(self) -> str:
        return KEEP_ALIVE

    def end(self, index: int, completion: Completion) -> str:
        return self._leave()

    def close(self, completions: Sequence[Completion]) -> str:
        (completion,) = completions
        response = _response(self._request, self._items, completion)
        return self._event(f"response.{response['status']}", response=response)

    def failed(self, error: ApiError) -> str:
        response = _response(self._request, self._items, None) | {"status": "failed"}
        response["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._event("response.failed", response=response)

    def _enter(self, kind: str) -> str:
        if self._open is not None and self._open.kind == kind:
            return ""
        left = self._leave()
        self._open = _OpenText(kind)
        added = self._added(self._open.item(is_over=False))
        return left + added + self._part_event("response.content_part.added", part=self._open.as_part(""))

    def _leave(self) -> str:
        if self._open is None:
            return ""
        at = self._open
        text = self._part_event(f"response.{at.part}.done", text=at.text)
        text += self._part_event("response.content_part.done", part=at.as_part(at.text))
        self._open = None
        return text + self._done(at.item(is_over=True))

    def _part_event(self, kind: str, **more: Any) -> str:
        assert self._open is not None
        extra: dict[str, Any] = {"logprobs": []} if kind.startswith("response.output_text") else {}
        return self._event(
            kind, item_id=self._open.name, output_index=len(self._items), content_index=0, **extra, **more
        )

    def _added(self, item: dict[str, Any]) -> str:
        return self._event("response.output_item.added", output_index=len(self._items), item=item)

    def _done(self, item: dict[str, Any]) -> str:
        text = self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        return text

    def _event(self, kind: str, **more: Any) -> str:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **more})


@dataclass(slots=True)
class _OpenText:
    """A message or thinking that has not ended."""

    kind: str
    text: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        self.name = f"{'rs' if self.kind == 'reasoning' else 'msg'}_{secrets.token_hex(12)}"

    @property
    def part(self) -> str:
        return "reasoning_text" if self.kind == "reasoning" else "output_text"

    def as_part(self, text: str) -> dict[str, Any]:
        return _part_of(self.part, text)

    def item(self, *, is_over: bool) -> dict[str, Any]:
        return _text_item(self.kind, self.name, self.text if is_over else None)


def _earlier(name: str | None, memory: Memory | None) -> Sequence[Message]:
    if name is None:
        return ()
    if memory is None or name not in memory.conversations:
        raise ApiError(
            400,
            f"This episode has no response {name!r} to continue: send the whole input, or leave `store` out.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    return memory.conversations[name].messages


def _tool_choice(raw: Any) -> ToolChoice:
    return ToolChoice.of(raw.get("type"), raw.get("name")) if isinstance(raw, Mapping) else ToolChoice.of(raw)


def _output(completion: Completion) -> list[dict[str, Any]]:
    items = []
    if thinking := completion.parsed.reasoning:
        items.append(_text_item("reasoning", f"rs_{completion.name}", thinking))
    if completion.text:
        items.append(_text_item("message", f"msg_{completion.name}", completion.text))
    return [*items, *(_call_item(call, completion.request.options.tools) for call in completion.calls)]


def _text_item(kind: str, name: str, text: str | None) -> dict[str, Any]:
    """Return a message or thinking; without text, one that is just beginning."""
    status = "in_progress" if text is None else "completed"
    part = "reasoning_text" if kind == "reasoning" else "output_text"
    content = [] if text is None else [_part_of(part, text)]
    if kind == "reasoning":
        return {"type": kind, "id": name, "summary": [], "content": content, "status": status}
    return {"type": kind, "id": name, "role": "assistant", "content": content, "status": status}


def _part_of(kind: str, text: str) -> dict[str, Any]:
    extra: dict[str, Any] = {} if kind == "reasoning_text" else {"annotations": [], "logprobs": []}
    return {"type": kind, "text": text, **extra}


def _call_item(call: ClientCall, tools: Tools) -> dict[str, Any]:
    status = "incomplete" if isinstance(call, UnfinishedCall) else "completed"
    item: dict[str, Any] = {"id": f"fc_{call.id}", "call_id": call.id, "name": call.name, "status": status}
    if call.name in tools.spaces:
        item["namespace"], item["name"] = tools.spaces[call.name]
    given = {} if isinstance(call, UnfinishedCall) else call.arguments
    if call.name in tools.custom and isinstance(given.get(TEXT_ARGUMENT), str) and len(given) == 1:
        return {"type": "custom_tool_call", "input": given[TEXT_ARGUMENT], **item}
    return {"type": "function_call", "arguments": arguments_for_clients(call), **item}


def _response(request: ModelRequest, output: Sequence[dict[str, Any]], completion: Completion | None) -> dict[str, Any]:
    """Return a response; without a completion, one that is just beginning."""
    options = request.options
    response: dict[str, Any] = {
        "id": options.name,
        "object": "response",
        "created_at": options.created,
        "model": request.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "metadata": {},
        "output": list(output),
        "usage": None,
        **options.given,
    }
    if completion is None:
        return response
    if completion.is_cut:
        response |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    else:
        response["status"] = "completed"
    num_prompt, num_sampled = len(completion.prompt), len(completion.generation.ids)
    response["usage"] = {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": num_sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_prompt + num_sampled,
    }
    return response
