"""`OpenAiChat`: OpenAI's Chat Completions API, which vLLM, SGLang, llama.cpp and most services implement."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentloop.engines.api.protocol import Answer, Line, parts_of, tools_of
from agentloop.engines.api.usage import Usage
from agentloop.engines.base import FinishReason, SamplingParams
from agentloop.types.messages import InvalidCall, ParsedTurn, ToolCall, valid_strings

_FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
    "content_filter": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}
_REASONING = ("reasoning_content", "reasoning")
"""Fields in which services return the reasoning of a turn."""
_KEPT = ("content", "refusal", "tool_calls", *_REASONING)
"""Fields of an assistant message that are sent back."""


class OpenAiChat:
    """The Chat Completions API. `max_tokens_field` has the token limit; older servers need `max_tokens`."""

    name = "openai"
    default_url = "https://api.openai.com/v1"
    key_variable = "OPENAI_API_KEY"
    path = "/chat/completions"

    def __init__(self, max_tokens_field: str = "max_completion_tokens") -> None:
        self._max_tokens_field = max_tokens_field

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def request(self, lines: Sequence[Line], params: SamplingParams, images: Sequence[Any]) -> dict[str, Any]:
        left = iter(images)
        body: dict[str, Any] = {
            "messages": [_message(line, left) for line in lines if "tools" not in line],
            self._max_tokens_field: params.max_tokens,
            "temperature": params.temperature,
        }
        optional = {
            "top_p": params.top_p if params.top_p < 1 else None,
            "top_k": params.top_k or None,
            "stop": list(params.stop_strings) or None,
            "seed": params.seed,
            "tools": tools_of(lines) or None,
        }
        return body | {name: value for name, value in optional.items() if value is not None}

    def answer(self, body: Any) -> Answer:
        choice = body["choices"][0]
        given, reason = choice["message"], choice["finish_reason"]
        if reason not in _FINISH_REASONS:
            raise ValueError(f"unknown finish_reason {reason!r}")
        finish = _FINISH_REASONS[reason]
        message = {"role": "assistant"} | {name: given[name] for name in _KEPT if given.get(name) is not None}
        if finish is FinishReason.LENGTH:
            message.pop("tool_calls", None)  # the last one is incomplete
        message.setdefault("content", None if "tool_calls" in message else "")
        read_turn(message)
        usage = body.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Answer(
            message,
            finish,
            Usage(usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0, cached),
            refused=reason == "content_filter" or "refusal" in message,
        )


def read_turn(message: Mapping[str, Any]) -> ParsedTurn:
    """Parse an assistant message. Raises `LookupError` or `TypeError` if a call is malformed, except its arguments."""
    calls = [
        _read_call(call["function"]["name"], call["function"]["arguments"], call["id"])
        for call in message.get("tool_calls") or ()
    ]
    reasoning = next((message[name] for name in _REASONING if message.get(name)), None)
    return ParsedTurn(message.get("content") or message.get("refusal") or "", reasoning, calls)


def _read_call(name: str, arguments: str, call_id: str) -> ToolCall | InvalidCall:
    if not isinstance(name, str):
        raise TypeError(f"the name of a call is {name!r}")
    try:
        value = json.loads(arguments or "{}")
    except RecursionError:
        return InvalidCall(f"The arguments of {name} are nested too deeply.", arguments, call_id, name)
    except ValueError as error:
        return InvalidCall(f"The arguments of {name} are not valid JSON: {error}.", arguments, call_id, name)
    if not isinstance(value, dict):
        return InvalidCall(f"The arguments of {name} are not a JSON object.", arguments, call_id, name)
    return ToolCall(name, valid_strings(value), call_id)


def _message(line: Line, images: Iterator[Any]) -> dict[str, Any]:
    if "sampled" in line:
        return dict(line["sampled"])
    message = dict(line["message"])
    message["content"] = parts_of(message.get("content", ""), images, _image)
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in calls]
    if message["role"] == "tool":
        message.pop("name", None)  # the call id identifies the function
    return message


def _image(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {"name": function["name"], "arguments": json.dumps(function["arguments"])}}
