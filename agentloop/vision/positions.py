"""Rotary positions of token streams with images (M-RoPE, arXiv 2409.12191, as in Qwen2-VL, 2.5-VL and 3-VL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from agentloop.types.image import PlacedImage

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rope_positions(length: int, images: Sequence[PlacedImage]) -> NDArray[np.int64]:
    """Return time, row and column of each token, int64 [3, length].

    For text the three are equal and continue after the largest earlier position. Image tokens get their row and column,
    offset by the position at which the image begins. `images` must be complete and in the order of the stream.
    """
    positions = np.empty((3, length), np.int64)
    done, following = 0, 0
    for image, start in images:
        positions[:, done:start] = following + np.arange(start - done)
        following += start - done
        rows, columns = (side // image.format.merge_size for side in image.grid)
        done = start + rows * columns
        positions[0, start:done] = following
        positions[1, start:done] = following + np.repeat(np.arange(rows), columns)
        positions[2, start:done] = following + np.tile(np.arange(columns), rows)
        following += max(rows, columns)
    positions[:, done:] = following + np.arange(length - done)
    return positions
