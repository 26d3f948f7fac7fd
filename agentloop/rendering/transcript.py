"""`Transcript`: the `Renderer` for engines that take messages instead of token ids.

The stream of an episode contains its messages as JSON lines. An id encodes four characters of such a line, about as
many as a token of English, so token limits hold approximately. The ids only represent the episode: no model sampled
them, and no model can be trained on them.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from agentloop.errors import UserError
from agentloop.rendering.base import Continuation, Progress, ToolSchemas
from agentloop.rendering.formats.turn_form import TurnForm
from agentloop.types.grammar import Grammar
from agentloop.types.messages import Message, ParsedTurn

_ID_BYTES = 4
_PIXELS_PER_TOKEN = 750
"""Estimate from Anthropic's rule; other services count between half and twice as many tokens."""


class GivenImages:
    """Replaces an `ImageProcessor`: the service gets images unchanged and scales them itself."""

    def num_tokens(self, image: Any) -> int:
        """Estimate the number of tokens of an image."""
        width, height = image.size
        return -(-width * height // _PIXELS_PER_TOKEN)

    def see(self, image: Any) -> Any:
        """Return the image itself."""
        return image

    def place(self, ids: Sequence[int], images: Sequence[Any], offset: int = 0) -> list[Any]:
        """Return the images, whose positions in the transcript follow from their order."""
        return list(images)


class Transcript:
    """Writes messages to a stream and reads them back. `read` parses an assistant message of the engine's protocol."""

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
        tools: ToolSchemas = (),
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        (line,) = lines_of(sampled)
        turn = self._read(line["sampled"])
        return turn if complete else ParsedTurn(turn.content, turn.reasoning)

    def parse_stream(
        self,
        sampled: Sequence[int],
        progress: Progress,
        *,
        tools: ToolSchemas = (),
        eager: Collection[str] = (),
        reads_calls: bool = True,
        call_id_prefix: str = "call_",
    ) -> ParsedTurn:
        """Parse a turn as `parse` does. A service sends it as a whole."""
        if progress == "sampling":
            return ParsedTurn("")
        return self.parse(sampled, complete=reads_calls and progress == "complete")

    def turn_grammar(self, form: TurnForm, tools: ToolSchemas = ()) -> Grammar:
        raise UserError("The turns of a service cannot be constrained. Use the engine vllm or hf.")

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
    """Return the text that ids were packed from; incomplete characters at its ends are lost."""
    return array("i", ids).tobytes().replace(b"\0", b"").decode("utf-8", "ignore")


def is_transcript(ids: Sequence[int]) -> bool:
    """Return whether a whole stream is a transcript, whose first id is larger than any vocabulary."""
    return len(ids) > 0 and ids[0] in _FIRST_IDS


def _packed(text: bytes) -> array[int]:
    packed = array("i")
    packed.frombytes(text + b"\0" * (-len(text) % _ID_BYTES))
    return packed


_FIRST_IDS = {_packed(f'{{"{kind}": '.encode())[0] for kind in ("tools", "message")}


def _line(message: Message) -> dict[str, Any]:
    """Return the line of a message, with marks for images, which are passed separately."""
    content = message.get("content", "")
    if isinstance(content, str):
        return {"message": message}
    parts = [part if part["type"] == "text" else {"type": "image"} for part in content]
    return {"message": {**message, "content": parts}}
