"""Tiny run of deepeyes: an image of four coloured fields, and a question about the weave of one of them.

    agentloop sft recipes/deepeyes/tiny_sft.yaml

makes the checkpoint. The weaves have a period of two pixels, and their mean is the colour of the field. The model first
sees the image at half size, without the weaves: only a zoomed field shows them.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from agentloop.recipes.tiny.traces import drawn_rows
from agentloop.types.messages import Message, ToolCall

if TYPE_CHECKING:
    from PIL import Image


FIELD = 112
"""Pixels of a side of a field: the maximum that the model sees, so a zoomed field is not scaled."""
SEEN_FIELD = 56
"""Pixels of a side of a field in the whole image as seen."""
COLOURS = {"red": (200, 70, 70), "green": (70, 180, 70), "blue": (70, 70, 200), "yellow": (190, 190, 70)}
PLACES = ("top left", "top right", "bottom left", "bottom right")
"""Places of the fields in reading order."""
WEAVES = ("rows", "columns", "checks", "plain")
_AMPLITUDE = 45
_FADE = 12
"""Pixels at the edge over which the weave fades."""

GUESS_SHARE = 0.3
"""Share of the warm-up traces that answer without zooming."""
RIGHT_SHARE = 0.4
"""Share of the others that zoom in on the field of the question; the rest zoom in on any field."""


def weave_pattern(weave: str) -> np.ndarray:
    """Return a pattern between -1 and 1, of mean 0, [FIELD, FIELD]. It fades at the edges, which scaling would show."""
    row, column = np.indices((FIELD, FIELD))
    phase = {"rows": row, "columns": column, "checks": row + column}.get(weave)
    if phase is None:
        return np.zeros((FIELD, FIELD))
    edge = np.minimum(np.minimum(row, FIELD - 1 - row), np.minimum(column, FIELD - 1 - column))
    return (1.0 - 2.0 * (phase % 2)) * np.clip(edge / _FADE, 0.0, 1.0)


def draw_image(rng: random.Random, colours: list[str], weaves: list[str]) -> Image.Image:
    """Draw four fields in reading order, with small variations of colour and contrast."""
    from PIL import Image

    pixels = np.empty((2 * FIELD, 2 * FIELD, 3))
    for number, (colour, weave) in enumerate(zip(colours, weaves, strict=True)):
        top, left = (FIELD * place for place in divmod(number, 2))
        base = np.array([channel + rng.randint(-15, 15) for channel in COLOURS[colour]], float)
        woven = base + rng.uniform(0.7, 1.0) * _AMPLITUDE * weave_pattern(weave)[..., None]
        pixels[top : top + FIELD, left : left + FIELD] = woven
    return Image.fromarray(pixels.clip(0, 255).round().astype(np.uint8))


def box_of(field: int) -> list[int]:
    """Return the box of a field in pixels of the image as seen."""
    row, column = divmod(field, 2)
    left, top = column * SEEN_FIELD, row * SEEN_FIELD
    return [left, top, left + SEEN_FIELD, top + SEEN_FIELD]


def draw_task(rng: random.Random) -> tuple[Image.Image, str, int, list[str]]:
    """Draw an image. Returns (image, question, field of the question, weaves of all fields)."""
    colours = rng.sample(list(COLOURS), 4)
    weaves = [rng.choice(WEAVES) for _ in colours]
    asked = rng.randrange(4)
    return draw_image(rng, colours, weaves), f"What is the {PLACES[asked]} one?", asked, weaves


def train_rows(num_rows: int = 1024, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield training rows."""
    return _rows("train", num_rows, seed)


def held_out_rows(num_rows: int = 100, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield evaluation rows, with other images."""
    return _rows("held-out", num_rows, seed)


def _rows(split: str, num_rows: int, seed: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(f"{split}-{seed}")
    for index in range(num_rows):
        image, question, asked, weaves = draw_task(rng)
        file = io.BytesIO()
        image.save(file, "PNG")
        yield {
            "id": f"{split}-{seed}-{index}",
            "prompt": [{"role": "user", "content": f"<image>{question}"}],
            "images": [{"bytes": file.getvalue()}],
            "answer": weaves[asked],
        }


def zoom_tool() -> Any:
    """Return the tool with the options of tiny.yaml."""
    from agentloop.recipes.deepeyes.tiny_model import MAX_PIXELS, MIN_PIXELS
    from agentloop.tools.vision.zoom import ImageZoomIn

    return ImageZoomIn(family="qwen2_5_vl", min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)


def trace(rng: random.Random) -> list[Message]:
    """Draw an episode that often zooms in on the wrong field, and names the weave of the field it sees."""
    image, question, asked, weaves = draw_task(rng)
    parts: list[Any] = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    prompt: Message = {"role": "user", "content": parts}
    if rng.random() < GUESS_SHARE:
        return [prompt, _says(rng.choice(WEAVES))]
    field = asked if rng.random() < RIGHT_SHARE else rng.randrange(4)
    tool, box = zoom_tool(), box_of(field)
    call = ToolCall(tool.name, {"bbox_2d": box}, id="call_0")
    turn: Message = {"role": "assistant", "content": "", "reasoning_content": f"The {PLACES[field]} one."}
    turn["tool_calls"] = [call.as_dict()]
    shown: list[Any] = [
        {"type": "text", "text": f"Zoomed in on the image to the region {box}."},
        {"type": "image", "image": tool.crop(image, box)},
    ]
    return [prompt, turn, {"role": "tool", "content": shown}, _says(weaves[field])]


def _says(weave: str) -> Message:
    return {"role": "assistant", "content": f"<answer>{weave}</answer>"}


def warmup_rows(num_rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the conversations of the warm-up."""
    return drawn_rows(trace, num_rows, seed, batch_size=16, with_tools=1)
