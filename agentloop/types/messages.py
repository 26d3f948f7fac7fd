"""Messages and tool calls, in the shape of chat templates and OpenAI-style APIs. A leaf of the import tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

Role = Literal["system", "user", "assistant", "tool"]


class TextPart(TypedDict):
    type: Literal["text"]
    text: str


class ImagePart(TypedDict):
    type: Literal["image"]
    image: Any
    """A `PIL.Image.Image`."""


Content = str | list[TextPart | ImagePart]


class Message(TypedDict, total=False):
    """One chat message. `role` and `content` are always there; the rest as the role needs."""

    role: Role
    content: Content
    reasoning_content: str
    tool_calls: list[dict[str, Any]]
    """`{"id": str, "type": "function", "function": {"name": str, "arguments": dict}}` each."""
    tool_call_id: str
    name: str


@dataclass(slots=True, frozen=True)
class ToolCall:
    """A well-formed call: known to be a name and a JSON object. Whether the tool exists is not checked here."""

    name: str
    arguments: dict[str, Any]
    id: str

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(slots=True, frozen=True)
class InvalidCall:
    """Something that was meant as a call and cannot be read as one. `error` is the feedback shown to the model."""

    error: str
    raw: str
    id: str
    name: str = ""
    """Of the function, as far as it could be read: some templates show it beside the result."""


@dataclass(slots=True, frozen=True)
class ParsedTurn:
    """What one sampled turn says."""

    content: str
    """The text outside of thinking and calls, stripped."""
    reasoning: str | None = None
    """The text inside the think tags, None where the turn has none."""
    calls: Sequence[ToolCall | InvalidCall] = field(default_factory=tuple)
    """In the order in which they were written."""

    def message(self) -> Message:
        """The assistant message of this turn; invalid calls are not part of it, they only get feedback."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if calls := [call.as_dict() for call in self.calls if isinstance(call, ToolCall)]:
            message["tool_calls"] = calls
        return message


def text_of(content: Content) -> str:
    """The text of a message's content, images left out."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def images_of(messages: Sequence[Message]) -> list[Any]:
    """The images of messages, in the order in which they are shown."""
    images = []
    for message in messages:
        content = message.get("content", "")
        if not isinstance(content, str):
            images += [part["image"] for part in content if part["type"] == "image"]
    return images
