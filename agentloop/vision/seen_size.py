"""Compute the size to which the processors of Qwen's vision models scale an image."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentloop.errors import UserError

MAX_ASPECT = 200
"""Maximum ratio of the sides that the processors accept."""


@dataclass(slots=True, frozen=True)
class SmartResize:
    """Sizes whose sides are multiples of `factor` and whose area is within limits, at nearly the same aspect ratio.

    `factor` is patch size times merge size: 28 for Qwen2-VL and Qwen2.5-VL, 32 for Qwen3-VL. The limits are those of
    the processor, in pixels. The rule is `smart_resize` of transformers' Qwen2-VL image processor.
    """

    factor: int = 28
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    def __post_init__(self) -> None:
        if not 0 < self.factor**2 <= self.max_pixels or not 0 < self.min_pixels <= self.max_pixels:
            raise UserError(
                f"No image size has sides that are multiples of {self.factor} and {self.min_pixels} to "
                f"{self.max_pixels} pixels: set max_pixels to at least min_pixels and at least {self.factor**2}."
            )

    def __call__(self, width: int, height: int) -> tuple[int, int]:
        """Return the scaled (width, height). Raises `UserError` if one side is more than 200 times the other."""
        if max(width, height) > MAX_ASPECT * min(width, height):
            raise UserError(
                f"An image of {width} x {height} is too elongated: crop it, so that no side "
                f"is more than {MAX_ASPECT} times the other."
            )
        sides = (width, height)
        new_width, new_height = (round(side / self.factor) * self.factor for side in sides)
        # In the order in which transformers computes it: rounding errors decide about a multiple of the factor.
        if new_width * new_height > self.max_pixels:
            scale = math.sqrt(width * height / self.max_pixels)
            new_width, new_height = (max(1, math.floor(side / scale / self.factor)) * self.factor for side in sides)
        elif new_width * new_height < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            new_width, new_height = (math.ceil(side * scale / self.factor) * self.factor for side in sides)
        return new_width, new_height
