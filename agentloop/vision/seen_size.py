"""The size in which a model sees a picture: what the processors of Qwen's vision models scale it to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentloop.errors import UserError

MAX_ASPECT = 200
"""Longer pictures are refused by the processors."""


@dataclass(slots=True, frozen=True)
class SmartResize:
    """Both sides become multiples of `factor`, the area stays between the bounds, the aspect as near as that allows.

    `factor` is patch size times merge size: 28 for Qwen2-VL and Qwen2.5-VL, 32 for Qwen3-VL. The bounds are the
    processor's (pixels). The rule is `smart_resize` of
    transformers' Qwen2-VL image processor.
    """

    factor: int = 28
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    def __post_init__(self) -> None:
        if not 0 < self.factor**2 <= self.max_pixels or not 0 < self.min_pixels <= self.max_pixels:
            raise UserError(
                f"A picture cannot be scaled to multiples of {self.factor} between {self.min_pixels} and "
                f"{self.max_pixels} pixels: max_pixels must be at least min_pixels and {self.factor**2}."
            )

    def __call__(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) as the model sees it. Raises `UserError` for a side more than 200 times the other."""
        if max(width, height) > MAX_ASPECT * min(width, height):
            raise UserError(
                f"A picture of {width} x {height} is too long: no side may be {MAX_ASPECT} times the other."
            )
        sides = (width, height)
        new_width, new_height = (round(side / self.factor) * self.factor for side in sides)
        if new_width * new_height > self.max_pixels:
            unit = self.factor * math.sqrt(width * height / self.max_pixels)
            new_width, new_height = (max(1, math.floor(side / unit)) * self.factor for side in sides)
        elif new_width * new_height < self.min_pixels:
            unit = self.factor * math.sqrt(width * height / self.min_pixels)
            new_width, new_height = (math.ceil(side / unit) * self.factor for side in sides)
        return new_width, new_height
