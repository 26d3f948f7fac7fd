"""Correct or refuse bounding boxes that a model writes, and map them from the image it saw to the source image.

Policy `verl` follows the rules of verl 0.7's `image_zoom_in_tool`, for parity. Policy `kind` refuses fewer boxes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

Policy = Literal["kind", "verl"]
Frame = Literal["pixel_seen", "pixel_source", "norm1000"]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

MIN_SIDE = 28
"""Side of the smallest image that Qwen's vision towers accept, in pixels."""
MAX_ASPECT = 100
_NORM = 1000.0


def resolve_box(bbox: Any, width: int, height: int, policy: Policy = "kind") -> Box | None:
    """Return a box inside an image of `width` x `height` pixels, large enough to show, or None if it is refused.

    Both policies cut off parts outside the image. They refuse boxes that are not four finite numbers, or are reversed,
    empty or completely outside. `verl` also refuses side ratios above 100. It enlarges a box with a side below 28
    pixels in proportion, as far as the image allows, and refuses long thin boxes that stay too small. `kind` enlarges
    only the short side: to 28 pixels and at least a hundredth of the long side, or to the side of the image.
    """
    numbers = _four_numbers(bbox)
    if numbers is None:
        return None
    left, top = max(0.0, numbers[0]), max(0.0, numbers[1])
    right, bottom = min(float(width), numbers[2]), min(float(height), numbers[3])
    if left >= right or top >= bottom:
        return None
    return (_enlarge_in_proportion if policy == "verl" else _lengthen)((left, top, right, bottom), width, height)


def _four_numbers(bbox: Any) -> Box | None:
    if not isinstance(bbox, Sequence) or isinstance(bbox, str | bytes) or len(bbox) != 4:
        return None
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in bbox):
        return None
    try:
        left, top, right, bottom = map(float, bbox)
    except OverflowError:  # an int too large for a float
        return None
    # max() and min() would replace NaN by a side of the image.
    return (left, top, right, bottom) if all(map(math.isfinite, (left, top, right, bottom))) else None


def _enlarge_in_proportion(box: Box, width: int, height: int) -> Box | None:
    left, top, right, bottom = box
    if not _has_sound_aspect(right - left, bottom - top):
        return None
    if right - left < MIN_SIDE or bottom - top < MIN_SIDE:
        factor = MIN_SIDE / min(right - left, bottom - top)
        new_width, new_height = (right - left) * factor, (bottom - top) * factor
        if new_width > width or new_height > height:
            factor = min(width / new_width, height / new_height)
            new_width, new_height = new_width * factor, new_height * factor
        new_left = min(max(0.0, (left + right - new_width) / 2), width - new_width)
        new_top = min(max(0.0, (top + bottom - new_height) / 2), height - new_height)
        left, top = math.floor(new_left), math.floor(new_top)
        right, bottom = math.ceil(new_left + new_width), math.ceil(new_top + new_height)
    if math.floor(right - left) < MIN_SIDE or math.floor(bottom - top) < MIN_SIDE:
        return None
    return (left, top, right, bottom) if _has_sound_aspect(right - left, bottom - top) else None


def _has_sound_aspect(width: float, height: float) -> bool:
    return max(width, height) / min(width, height) <= MAX_ASPECT


def _lengthen(box: Box, width: int, height: int) -> Box:
    left, top, right, bottom = box
    shortest = max(float(MIN_SIDE), max(right - left, bottom - top) / MAX_ASPECT)
    left, right = _stretched(left, right, shortest, width)
    top, bottom = _stretched(top, bottom, shortest, height)
    return left, top, right, bottom


def _stretched(start: float, end: float, shortest: float, available: int) -> tuple[int, int]:
    """Extend [start, end] to `shortest` whole pixels, or all `available` ones, inside the image."""
    missing = shortest - (end - start)
    if missing > 0:
        start = min(max(0.0, start - missing / 2), max(0.0, available - shortest))
        end = min(start + shortest, float(available))
    return math.floor(start), min(math.ceil(end), available)


def to_source(box: Box, seen: tuple[int, int], source: tuple[int, int]) -> tuple[int, int, int, int]:
    """Map a box from the image as seen to whole pixels of the source image, at least one.

    `seen` and `source` are (width, height).
    """
    scale_x, scale_y = source[0] / seen[0], source[1] / seen[1]
    left, top = _down(box[0] * scale_x), _down(box[1] * scale_y)
    right, bottom = min(_up(box[2] * scale_x), source[0]), min(_up(box[3] * scale_y), source[1])
    left, top = min(left, source[0] - 1), min(top, source[1] - 1)
    return left, top, max(right, left + 1), max(bottom, top + 1)


def _down(value: float) -> int:
    """Round down, but 2.9999999999 to 3, so that the error of a scale factor does not cost a pixel."""
    return math.floor(value + 1e-6)


def _up(value: float) -> int:
    return math.ceil(value - 1e-6)


def to_seen(bbox: Any, frame: Frame, seen: tuple[int, int], source: tuple[int, int]) -> Any:
    """Convert a box to pixels of the image as the model saw it. Anything but a box is returned unchanged."""
    if frame == "pixel_seen" or _four_numbers(bbox) is None:
        return bbox
    unit = (_NORM, _NORM) if frame == "norm1000" else source
    return [value * seen[index % 2] / unit[index % 2] for index, value in enumerate(bbox)]
