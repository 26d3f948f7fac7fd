"""Images as a model sees them, and the place of their tokens."""

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
    """How a processor turns the pixels of a scaled image into the input of a vision tower."""

    patch_size: int
    merge_size: int
    """Patches along each side of the square that becomes one token."""
    temporal_patch_size: int
    """Repetitions of each patch: the towers read two frames of a video at once, and an image is two equal frames."""
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
    """An image that its processor has scaled.

    It takes an eighth of the memory of the tower's input and holds the same information. Engines and learner compute
    that input from it, so they cannot disagree about the pixels.
    """

    pixels: NDArray[np.uint8]
    """[height, width, 3], RGB; both sides are multiples of `format.factor`."""
    format: PixelFormat
    digest: str = field(init=False)
    """Hash of pixels and format: images with equal digests have equal features."""

    def __post_init__(self) -> None:
        height, width, channels = self.pixels.shape
        factor = self.format.factor
        if channels != 3 or self.pixels.dtype != np.uint8 or height % factor or width % factor or not height * width:
            raise ValueError(f"pixels of shape {self.pixels.shape}, {self.pixels.dtype}: not RGB in units of {factor}")
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
    """An image whose tokens are `start:end` of a stream."""

    image: SeenImage
    start: int

    @property
    def end(self) -> int:
        return self.start + self.image.num_tokens
