"""Convert observations to the content of a message: text, and images if there are any.

    Text                as it is                              Discrete           the number, or its name
    Box, Multi*, Tuple  [1, 0.5], or a line for each name     Dict               a line for each key
    Box of pixels       an image (H x W, H x W x 1, 3 or 4, all from 0 to 255)

Renderings become text too (mode "ansi"), or an image ("rgb_array").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from agentloop.types.messages import Content, ImagePart, TextPart

Parts = list[TextPart | ImagePart]

_MAX_TEXT = 100_000
_COLOURS = dict(enumerate(["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"]))
_COLOURED = re.compile(r"\x1b\[([\d;]*)m(.*?)\x1b\[0?m", re.DOTALL)
_RESETS = ("\x1b[0m", "\x1b[m")
_CODE_DIGITS = 3
_CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def shown(space: spaces.Space, observation: Any, names: Sequence[str] = ()) -> Parts:
    """Return the parts of an observation.

    `names` belong to the elements of an array or tuple, or to the values of a Discrete space.
    """
    if isinstance(space, spaces.Text):
        return [_text(str(observation))]
    if is_image(space):
        return [image_part(observation)]
    if isinstance(space, spaces.Discrete) and names:
        return [_text(names[int(observation) - int(space.start)])]
    if isinstance(space, spaces.Dict):
        return _fields(list(space.spaces), [(space.spaces[key], observation[key]) for key in space.spaces])
    if isinstance(space, spaces.Tuple):
        elements = list(zip(space.spaces, observation, strict=True))
        if names or any(is_image(part) for part in space.spaces):
            return _fields(names or [str(index) for index in range(len(elements))], elements)
    elif names:
        values = [_plain(value) for value in np.asarray(observation).reshape(-1)]
        return [_text("\n".join(f"{name}: {value}" for name, value in zip(names, values, strict=True)))]
    return [_text(_plain(observation))]


def rendered(frame: Any) -> Parts:
    """Return the parts of a rendering: a string, an array of pixels, or the last element of a list of them."""
    if isinstance(frame, list) and frame:
        frame = frame[-1]
    if isinstance(frame, np.ndarray):
        return [image_part(frame)]
    return [_text("" if frame is None else uncoloured(str(frame)).strip("\n"))]


def uncoloured(text: str) -> str:
    """Replace terminal colours with text: [x] for a highlight, <blue>x</blue> for a colour."""

    def mark(match: re.Match[str]) -> str:
        codes = [int(code) for code in match[1].split(";") if 0 < len(code) <= _CODE_DIGITS]
        if any(40 <= code <= 47 or 100 <= code <= 107 for code in codes):
            return f"[{match[2]}]"
        colour = next((_COLOURS[code % 10] for code in codes if 30 <= code <= 37 or 90 <= code <= 97), None)
        return f"<{colour}>{match[2]}</{colour}>" if colour else match[2]

    # Stop at the last reset, because after it the pattern would search for an end from each beginning.
    end = max((text.rfind(reset) + len(reset) for reset in _RESETS if reset in text), default=0)
    return _CONTROL.sub("", _COLOURED.sub(mark, text[:end]) + text[end:])


def content_of(parts: Parts) -> Content:
    """Return a string if there are no images, else the list of parts."""
    if any(part["type"] == "image" for part in parts):
        return [part for part in parts if part["type"] == "image" or part["text"]]
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def is_image(space: spaces.Space) -> bool:
    """Return whether a space contains images: bytes from 0 to 255, [H, W] or [H, W, 1, 3 or 4]."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    is_shaped = len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3, 4))
    return is_shaped and min(space.shape[:2]) >= 8 and bool((space.low == 0).all() and (space.high == 255).all())


def image_part(pixels: np.ndarray) -> ImagePart:
    """Return an image part with an array of pixels."""
    from PIL import Image

    array = np.asarray(pixels, dtype=np.uint8)
    return {"type": "image", "image": Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array)}


def _fields(names: Sequence[str], elements: Sequence[tuple[spaces.Space, Any]]) -> Parts:
    parts: Parts = []
    for name, (space, value) in zip(names, elements, strict=True):
        inner = shown(space, value)
        is_short = len(inner) == 1 and inner[0]["type"] == "text" and "\n" not in inner[0]["text"]
        parts += [_text(f"{name}: {inner[0]['text']}")] if is_short else [_text(f"{name}:"), *inner]  # type: ignore[typeddict-item]
    return parts


def _plain(value: Any) -> str:
    """Format numbers to 6 significant digits, arrays and tuples in brackets, and anything else with str()."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, float | np.floating):
        return f"{float(value):.6g}"
    if isinstance(value, np.generic):
        return str(value.item())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(item)}" for key, item in value.items()) + "}"
    return str(value)


def _text(text: str) -> TextPart:
    return {"type": "text", "text": text[:_MAX_TEXT]}
