"""`Transcript`: the `Renderer` of engines that take messages instead of token ids.

The stream of an episode then holds its messages as lines of JSON. An id is four characters of such a line, about as
long as a token of English, so limits in tokens keep their meaning as estimates. The ids are a notation of the episode:
no model sampled them, and none can be trained on them.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentloop.rendering.base import Continuation, ToolSchemas
from agentloop.types.messages import Message, ParsedTurn

_ID_BYTES = 4
_PIXELS_PER_TOKEN = 750
"""Estimate: Anthropic's rule; other services count between a half and the double."""


class GivenImages:
    """Takes the place of an `ImageProcessor`: the service scales images itself and gets them as they are."""

    def num_tokens(self, image: Any) -> int:
        """Estimate the number of tokens of an image."""
        width, height = image.size
        return -(-width * height // _PIXELS_PER_TOKEN)

    def see(self, image: Any) -> Any:
        """Return the image itself."""
        return image

    def place(self, ids: Sequence[int], images: Sequence[Any], offset: int = 0) -> list[Any]:
        """Return the images: their places in the transcript follow from their order."""
        return list(images)


class Transcript:
    """Writes messages to a stream and reads them back.

    `read` parses an assistant message in the form of the engine's protocol.
    """

    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()

    def __init__(self, read: Callable[[Mapping[str, Any]], ParsedTurn]) -> None:
        self._read = read
        self.vision: Any = GivenImages()

    def render_prompt(self, messages: Sequence[Message], tools: ToolSchemas = ()) -> list[int]:
        shown = [{"tools": list(tools)}] if tools else []
        return list(ids_of([*shown, *map(_line, messages)]))

    def render_continuation(
        self, sampled: Sequence[int], messages: Sequence[Message], tools: ToolSchemas = ()
    ) -> Continuation:
        return Continuation([], list(ids_of(map(_line, messages))))

    def parse(
        self,
        sampled: Sequence[int],
        *,
        complete: bool = True,
        over: bool = True,
        tools: ToolSchemas = (),
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        (line,) = lines_of(sampled)
        turn = self._read(line["sampled"])
        return turn if complete else ParsedTurn(turn.content, turn.reasoning)

    def encode(self, text: str) -> list[int]:
        return list(_packed(text.encode("utf-8", "surrogatepass")))

    def decode(self, ids: Sequence[int]) -> str:
        return text_of_ids(ids)


def ids_of(lines: Any) -> array[int]:
    """Return the ids of lines: `{"tools": [...]}`, `{"message": {...}}` or `{"sampled": {...}}`."""
    return array("i", b"".join(_packed(json.dumps(line).encode() + b"\n").tobytes() for line in lines))


def lines_of(ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the lines of a stream."""
    return [json.loads(line) for line in text_of_ids(ids).splitlines()]


def text_of_ids(ids: Sequence[int]) -> str:
    """Return the text that ids were packed from; half a character at an end of it is lost."""
    return array("i", ids).tobytes().replace(b"\0", b"").decode("utf-8", "ignore")


def is_transcript(ids: Sequence[int]) -> bool:
    """Return whether a whole stream is a transcript. No vocabulary has ids as large as its first one."""
    return len(ids) > 0 and ids[0] in _FIRST_IDS


def _packed(text: bytes) -> array[int]:
    packed = array("i")
    packed.frombytes(text + b"\0" * (-len(text) % _ID_BYTES))
    return packed


_FIRST_IDS = {_packed(f'{{"{kind}": '.encode())[0] for kind in ("tools", "message")}


def _line(message: Message) -> dict[str, Any]:
    """Return the line of a message. Images are marked: they travel beside the stream."""
    content = message.get("content", "")
    if isinstance(content, str):
        return {"message": message}
    parts = [part if part["type"] == "text" else {"type": "image"} for part in content]
    return {"message": {**message, "content": parts}}
