"""A sampled turn as OpenAI's API answers it: one object, or the events of a stream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import FinishReason, Generation
from agentloop.gateway.requests import ChatRequest
from agentloop.messages import InvalidCall, ParsedTurn, ToolCall

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer


@dataclass(slots=True, frozen=True)
class Completion:
    """What answers a request."""

    request: ChatRequest
    prompt: Sequence[int]
    generation: Generation
    parsed: ParsedTurn
    name: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def finish_reason(self) -> str:
        if self.generation.finish_reason is FinishReason.LENGTH:
            return "length"
        return "tool_calls" if any(isinstance(call, ToolCall) for call in self.parsed.calls) else "stop"

    @property
    def usage(self) -> dict[str, int]:
        num_prompt, num_sampled = len(self.prompt), len(self.generation.ids)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_sampled,
            "total_tokens": num_prompt + num_sampled,
        }


def response_message(parsed: ParsedTurn) -> dict[str, Any]:
    """The assistant message. A call that cannot be read is text, as the model wrote it."""
    unread = [call.raw for call in parsed.calls if isinstance(call, InvalidCall)]
    content = "\n".join(filter(None, [parsed.content, *unread]))
    calls = [_call(call) for call in parsed.calls if isinstance(call, ToolCall)]
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def as_object(completion: Completion, renderer: Renderer) -> dict[str, Any]:
    """The whole answer."""
    choice = {
        "index": 0,
        "message": response_message(completion.parsed),
        "finish_reason": completion.finish_reason,
        "logprobs": _logprobs(completion, renderer),
    }
    answer = _head(completion, "chat.completion")
    if completion.request.return_token_ids:
        choice["token_ids"] = list(completion.generation.ids)
        answer["prompt_token_ids"] = list(completion.prompt)
    return answer | {"choices": [choice], "usage": completion.usage}


def as_events(completion: Completion, renderer: Renderer) -> Iterator[str]:
    """The answer as server-sent events. An engine gives whole turns, so the text is one of them."""
    message = response_message(completion.parsed)
    calls = message.pop("tool_calls", [])
    first: dict[str, Any] = {"delta": message, "logprobs": _logprobs(completion, renderer)}
    if completion.request.return_token_ids:
        first["token_ids"] = list(completion.generation.ids)
    deltas: list[dict[str, Any]] = [first]
    deltas += [{"delta": {"tool_calls": [{"index": index, **call}]}} for index, call in enumerate(calls)]
    deltas.append({"delta": {}, "finish_reason": completion.finish_reason})
    for delta in deltas:
        choice = {"index": 0, "finish_reason": None} | delta
        yield _event(_head(completion, "chat.completion.chunk") | {"choices": [choice]})
    if completion.request.include_usage:
        yield _event(_head(completion, "chat.completion.chunk") | {"choices": [], "usage": completion.usage})
    yield "data: [DONE]\n\n"


def _head(completion: Completion, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{completion.name}",
        "object": kind,
        "created": completion.created,
        "model": completion.request.model,
    }


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _logprobs(completion: Completion, renderer: Renderer) -> dict[str, Any] | None:
    """Of each sampled token, the one that ends the turn included: it is trained on, too."""
    if not completion.request.logprobs:
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
