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
    if part.get("type") == "text":
        return isinstance(part.get("text"), str)
    return part.get("type") == "image" and _is_image(part.get("image"))


def _is_image(value: object) -> bool:
    from PIL.Image import Image  # only episodes with images need it

    return isinstance(value, Image)


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


def valid_text(text: str) -> str:
    """Return a text with U+FFFD in place of lone surrogates, which JSON may contain and UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def valid_strings(value: Any) -> Any:
    """Return a JSON value, or the content of a message, with valid text in all its strings."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, list):
        return [valid_strings(item) for item in value]
    if isinstance(value, dict):
        return {valid_strings(key): valid_strings(item) for key, item in value.items()}
    return value


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
