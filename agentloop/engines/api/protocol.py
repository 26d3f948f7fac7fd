"""`ApiProtocol`: how an API engine writes requests and reads responses."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentloop.engines.api.usage import Usage
from agentloop.engines.base import FinishReason, SamplingParams

Line = Mapping[str, Any]
"""A line of a transcript (`agentloop.rendering.transcript`)."""


@dataclass(slots=True, frozen=True)
class Answer:
    """One sampled turn."""

    message: dict[str, Any]
    """The assistant message as the API wrote it; it is sent back unchanged."""
    finish_reason: FinishReason
    usage: Usage
    refused: bool = False
    """Whether the model, or a filter of the service, declined to answer."""


class ApiProtocol(Protocol):
    """Format of the requests and responses of one API."""

    name: str
    default_url: str
    key_variable: str
    """Environment variable that contains the key by default."""
    path: str

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry the key."""
        ...

    def request(self, lines: Sequence[Line], params: SamplingParams, images: Sequence[Any]) -> dict[str, Any]:
        """Return the body of a request for the next turn, without the model."""
        ...

    def answer(self, body: Any) -> Answer:
        """Read the body of a response. Raises `LookupError`, `TypeError` or `ValueError` if it is malformed.

        That includes malformed calls in its message, which would otherwise end the run when the turn is read.
        """
        ...


def tools_of(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the tool schemas of a transcript."""
    return [tool for line in lines for tool in line.get("tools", ())]


def png(image: Any) -> str:
    """Return an image as base64 of a PNG."""
    buffer = io.BytesIO()
    image.convert("RGBA" if "A" in image.getbands() else "RGB").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def parts_of(
    content: Any, images: Iterator[Any], of_image: Callable[[str], dict[str, Any]]
) -> str | list[dict[str, Any]]:
    """Return content for an API: text unchanged, and the next of the images in place of each image mark."""
    if isinstance(content, str):
        return content
    return [dict(part) if part["type"] == "text" else of_image(png(next(images))) for part in content]
