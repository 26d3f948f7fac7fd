"""Preprocessed images, and the positions of their tokens in a stream."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image


@dataclass(slots=True, frozen=True)
class PixelFormat:
    """Parameters by which a processor converts a scaled image to the input of a vision tower."""

    patch_size: int
    merge_size: int
    """Patches along each side of the square that becomes one token."""
    temporal_patch_size: int
    """Repetitions of each patch: the towers read two video frames at once, so an image counts as two equal frames."""
    scale: float
    """Factor that scales the pixels before `mean` and `std` apply."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def factor(self) -> int:
        """Pixels along each side of the square that becomes one token."""
        return self.patch_size * self.merge_size


@dataclass(slots=True, frozen=True, eq=False, weakref_slot=True)
class SeenImage:
    """An image as the model sees it, scaled by its processor.

    It takes an eighth of the memory of the tower's input and holds the same information. Engines and learner compute
    that input from it, so they cannot disagree about the pixels.
    """

    pixels: NDArray[np.uint8]
    """[height, width, 3], RGB; both sides are multiples of `format.factor`."""
    format: PixelFormat
    digest: str = field(init=False)
    """Hash of pixels and format; images with equal digests have equal features."""

    def __post_init__(self) -> None:
        height, width, channels = self.pixels.shape
        factor = self.format.factor
        if channels != 3 or self.pixels.dtype != np.uint8 or height % factor or width % factor or not height * width:
            raise ValueError(
                f"pixels have shape {self.pixels.shape} and type {self.pixels.dtype}: expected uint8 "
                f"[height, width, 3] with sides that are multiples of {factor}"
            )
        header = f"{height}x{width} {self.format}".encode()
        digest = hashlib.blake2b(header, digest_size=16)
        digest.update(np.ascontiguousarray(self.pixels).data)
        object.__setattr__(self, "digest", digest.hexdigest())

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width, _ = self.pixels.shape
        return height // self.format.patch_size, width // self.format.patch_size

    @property
    def num_patches(self) -> int:
        rows, columns = self.grid
        return rows * columns

    @property
    def num_tokens(self) -> int:
        return self.num_patches // self.format.merge_size**2

    def as_pil(self) -> Image.Image:
        """Return the pixels as a `PIL.Image.Image`."""
        from PIL import Image

        return Image.fromarray(self.pixels)


class PlacedImage(NamedTuple):
    """An image whose tokens have the positions `start:end` in a stream."""

    image: SeenImage
    start: int

    @property
    def end(self) -> int:
        return self.start + self.image.num_tokens
