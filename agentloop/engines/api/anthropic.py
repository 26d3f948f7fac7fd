"""`AnthropicMessages`: Anthropic's Messages API, which some other services also implement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentloop.engines.api.protocol import Answer, Line, parts_of, tools_of
from agentloop.engines.api.usage import Usage
from agentloop.engines.base import FinishReason, SamplingParams
from agentloop.types.messages import ParsedTurn, ToolCall

_VERSION = "2023-06-01"
_FINISH_REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.STOP,
    "refusal": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
}

Block = dict[str, Any]


class AnthropicMessages:
    """The Messages API. Thinking blocks are sent back with their signatures, as the API requires between tool calls.

    With `cache` the service caches prompts, so that later turns of an episode cost less. A temperature of 1, the
    default, is not sent, because newer models reject the field.
    """

    name = "anthropic"
    default_url = "https://api.anthropic.com/v1"
    key_variable = "ANTHROPIC_API_KEY"
    path = "/messages"

    def __init__(self, cache: bool = True) -> None:
        self._cache = cache

    def headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key, "anthropic-version": _VERSION}

    def request(self, lines: Sequence[Line], params: SamplingParams, images: Sequence[Any]) -> dict[str, Any]:
        system, messages = _conversation(lines, iter(images))
        body: dict[str, Any] = {"messages": messages, "max_tokens": params.max_tokens}
        optional = {
            "cache_control": {"type": "ephemeral"} if self._cache else None,
            "system": system or None,
            "temperature": params.temperature if params.temperature != 1 else None,
            "top_p": params.top_p if params.top_p < 1 else None,
            "top_k": params.top_k or None,
            "stop_sequences": list(params.stop_strings) or None,
            "tools": [_tool(tool["function"]) for tool in tools_of(lines)] or None,
        }
        return body | {name: value for name, value in optional.items() if value is not None}

    def answer(self, body: Any) -> Answer:
        reason = body["stop_reason"]
        if reason not in _FINISH_REASONS:
            raise ValueError(f"unknown stop_reason {reason!r}")
        finish, blocks = _FINISH_REASONS[reason], list(body["content"])
        if finish is FinishReason.LENGTH:
            blocks = [block for block in blocks if block["type"] != "tool_use"]  # the last one is incomplete
        message = {"role": "assistant", "content": blocks}
        read_turn(message)
        usage = body["usage"]
        cached, written = (usage.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
        total = usage["input_tokens"] + cached + written
        return Answer(
            message,
            finish,
            Usage(total, usage["output_tokens"], cached, written),
            refused=reason == "refusal",
        )


def read_turn(message: Mapping[str, Any]) -> ParsedTurn:
    """Parse an assistant message. Raises `LookupError` or `TypeError` if a block is malformed."""
    blocks = message["content"]
    thinking = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    return ParsedTurn(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "\n".join(thinking) if thinking else None,
        [ToolCall(block["name"], block["input"], block["id"]) for block in blocks if block["type"] == "tool_use"],
    )


def _conversation(lines: Sequence[Line], images: Iterator[Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the system prompt and the messages, in which user and assistant alternate."""
    system: list[str] = []
    messages: list[dict[str, Any]] = []
    for line in lines:
        if "tools" in line:
            continue
        message = line.get("sampled") or line["message"]
        if message["role"] == "system" and not messages:
            system.append("".join(block["text"] for block in _content(message, images)))
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = list(message["content"]) if "sampled" in line else _blocks(message, images)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:  # the API rejects empty messages
            messages.append({"role": role, "content": blocks})
    return "\n\n".join(system), messages


def _blocks(message: Mapping[str, Any], images: Iterator[Any]) -> list[Block]:
    content = _content(message, images)
    if message["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}]
    calls = [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": call["function"]["arguments"]}
        for call in message.get("tool_calls") or ()
    ]
    return [*content, *calls]


def _content(message: Mapping[str, Any], images: Iterator[Any]) -> list[Block]:
    """Return the blocks of a message's content, without empty texts, which the API rejects."""
    parts = parts_of(message.get("content", ""), images, _image)
    blocks = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
    return [block for block in blocks if block.get("text") != ""]


def _image(data: str) -> Block:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    tool = {"name": function["name"], "description": function.get("description", "")}
    return tool | {"input_schema": function.get("parameters") or {"type": "object", "properties": {}}}
