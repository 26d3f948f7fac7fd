"""A picture as a model sees it, and where its tokens are."""

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
    """How the pixels of a scaled picture become the input of a vision tower: the fingerprint of its processor."""

    patch_size: int
    merge_size: int
    """Patches along a side of the square that becomes one token."""
    temporal_patch_size: int
    """Times each patch is repeated: the towers read two frames of a video at once, a picture is two equal ones."""
    scale: float
    """Factor of the pixels, before mean and standard deviation."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def factor(self) -> int:
        """Pixels along a side of what becomes one token."""
        return self.patch_size * self.merge_size


@dataclass(slots=True, frozen=True, eq=False, weakref_slot=True)
class SeenImage:
    """A picture after its processor has scaled it: an eighth of the memory of what the tower takes, and the same
    information. Engines and learner compute that from it, so they cannot disagree about the pixels."""

    pixels: NDArray[np.uint8]
    """[height, width, 3], RGB; both sides are multiples of `format.factor`."""
    format: PixelFormat
    digest: str = field(init=False)
    """Of pixels and format: equal digests, equal features."""

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

    def picture(self) -> Image.Image:
        """As a `PIL.Image.Image`."""
        from PIL import Image

        return Image.fromarray(self.pixels)


class PlacedImage(NamedTuple):
    """A picture whose tokens are `start:end` of a stream."""

    image: SeenImage
    start: int

    @property
    def end(self) -> int:
        return self.start + self.image.num_tokens
