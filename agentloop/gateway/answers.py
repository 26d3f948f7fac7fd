"""Convert sampled turns to answers of OpenAI's API."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import FinishReason, Generation
from agentloop.gateway.requests import ChatRequest
from agentloop.types.messages import InvalidCall, ParsedTurn, ToolCall

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer


@dataclass(slots=True, frozen=True)
class Completion:
    """A sampled turn that answers a request."""

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


def response_message(parsed: ParsedTurn) -> dict[str, Any]:
    """Return the assistant message. A malformed call is text, as the model wrote it."""
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


def as_object(completions: Sequence[Completion], renderer: Renderer) -> dict[str, Any]:
    """Return the whole answer to a request: its turns are the choices."""
    first = completions[0]
    choices = []
    for index, completion in enumerate(completions):
        choice = {
            "index": index,
            "message": response_message(completion.parsed),
            "finish_reason": completion.finish_reason,
            "logprobs": logprobs_of(completion, renderer),
        }
        if completion.request.return_token_ids:
            choice["token_ids"] = list(completion.generation.ids)
        choices.append(choice)
    answer = head(first.request, "chat.completion", first.name, first.created)
    if first.request.return_token_ids:
        answer["prompt_token_ids"] = list(first.prompt)
    return answer | {"choices": choices, "usage": usage_of(completions)}


def usage_of(completions: Sequence[Completion]) -> dict[str, int]:
    """Count the tokens of a request. Its prompt counts once."""
    num_prompt = len(completions[0].prompt)
    num_sampled = sum(len(completion.generation.ids) for completion in completions)
    return {"prompt_tokens": num_prompt, "completion_tokens": num_sampled, "total_tokens": num_prompt + num_sampled}


def head(request: ChatRequest, kind: str, name: str, created: int) -> dict[str, Any]:
    """Return the first fields of an answer and of each part of a stream."""
    return {"id": f"chatcmpl-{name}", "object": kind, "created": created, "model": request.model}


def logprobs_of(completion: Completion, renderer: Renderer) -> dict[str, Any] | None:
    """Return the logprob of each sampled token, with the token that ends the turn: it is trained, too."""
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
