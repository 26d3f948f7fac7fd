"""Messages and tool calls in the form of chat templates and OpenAI-style APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args

Role = Literal["system", "user", "assistant", "tool"]


ROLES: tuple[Role, ...] = get_args(Role)


class TextPart(TypedDict):
    """Text in the content of a message."""

    type: Literal["text"]
    text: str


class ImagePart(TypedDict):
    """An image in the content of a message."""

    type: Literal["image"]
    image: Any
    """A `PIL.Image.Image`."""


Content = str | list[TextPart | ImagePart]


def is_content(content: object) -> bool:
    """Return whether a value can be the content of a message."""
    return isinstance(content, str) or (isinstance(content, list) and all(map(_is_part, content)))


def _is_part(part: object) -> bool:
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return isinstance(part.get("text"), str) if kind == "text" else kind == "image" and "image" in part


class Message(TypedDict, total=False):
    """One chat message. It has `role` and `content`, and further keys depending on its role."""

    role: Role
    content: Content
    reasoning_content: str
    tool_calls: list[dict[str, Any]]
    """`{"id": str, "type": "function", "function": {"name": str, "arguments": dict}}` each."""
    tool_call_id: str
    name: str
    finish_reason: Literal["stop", "length"]
    """How a turn ended, in the message that `Env.step` gets; "length": a token limit cut it."""


@dataclass(slots=True)
class ToolCall:
    """A well-formed call: a name and a JSON object. The tool may not exist."""

    name: str
    arguments: dict[str, Any]
    id: str

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(slots=True, frozen=True)
class InvalidCall:
    """A malformed call. The model gets `error` as feedback."""

    error: str
    raw: str
    id: str
    name: str = ""
    """Name of the function if it could be parsed; some chat templates show it with the result."""


@dataclass(slots=True, frozen=True)
class UnfinishedCall(InvalidCall):
    """A call that a stream sends while it is sampled, and that has not ended or is malformed."""

    arguments: str = ""
    """Beginning of the arguments as JSON. It is never a whole object."""


@dataclass(slots=True)
class ParsedTurn:
    """One sampled turn, split into text, thinking and calls."""

    content: str
    """Text outside thinking and calls, stripped."""
    reasoning: str | None = None
    """Text inside the think tags; None if the turn has none."""
    calls: Sequence[ToolCall | InvalidCall] = field(default_factory=tuple)
    """Calls in the order in which the model wrote them."""

    def message(self) -> Message:
        """Return the assistant message of this turn, without invalid calls."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if calls := [call.as_dict() for call in self.calls if isinstance(call, ToolCall)]:
            message["tool_calls"] = calls
        return message


def text_of(content: Content) -> str:
    """Return the text of a message's content, without images."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def images_of(messages: Sequence[Message]) -> list[Any]:
    """Return the images of messages, in order."""
    images = []
    for message in messages:
        content = message.get("content", "")
        if not isinstance(content, str):
            images += [part["image"] for part in content if part["type"] == "image"]
    return images
