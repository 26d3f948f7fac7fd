"""The pictures of a packed row: their pixels, where their features go, and the rotary positions around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentloop.types.image import PixelFormat, PlacedImage, SeenImage
from agentloop.vision.tower import embedded, image_features, token_index, upload


@dataclass(slots=True, frozen=True, eq=False)
class RowPictures:
    """What of a row of `num_tokens` is not plain text."""

    pixels: tuple[Tensor, ...]
    """uint8 [height, width, 3] each: an eighth of what the tower takes, which is made on the device."""
    format: PixelFormat
    index: Tensor
    """int64; the tokens that show them, one picture after the other. Empty for a picture that nobody sees."""
    positions: Tensor
    """[3, 1, num_tokens] int64; see `rope_positions`."""

    @classmethod
    def of(cls, placed: Sequence[PlacedImage], positions: NDArray[np.int64], device: torch.device | str) -> RowPictures:
        """`placed` are in the row, and `positions` [3, num_tokens] those of its sequences."""
        images = [image for image, _ in placed]
        index = token_index([start for _, start in placed], images)
        assert len({image.format for image in images}) == 1, "one model, one processor"
        return cls(
            tuple(upload(images, device)),
            images[0].format,
            torch.from_numpy(index).to(device, non_blocking=True),
            torch.from_numpy(positions[:, None]).to(device, non_blocking=True),
        )

    @classmethod
    def unseen(cls, pixel_format: PixelFormat, positions: Tensor) -> RowPictures:
        """For a row without pictures, where other ranks have some: collectives inside of the tower need every rank.
        `positions` [1, num_tokens] are those of the text."""
        blank = SeenImage(np.zeros((pixel_format.factor, pixel_format.factor, 3), np.uint8), pixel_format)
        device = positions.device
        nowhere = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(tuple(upload([blank], device)), pixel_format, nowhere, positions.expand(3, 1, -1))

    def inputs(self, backbone: Any, input_ids: Tensor) -> dict[str, Any]:
        """Keyword arguments of `backbone.language_model` in place of `input_ids` [1, num_tokens] and their
        positions. A tower that is frozen keeps nothing for a backward."""
        trained = any(parameter.requires_grad for parameter in backbone.visual.parameters())
        with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
            features = image_features(backbone, self.pixels, self.format)
        inputs = embedded(backbone, input_ids, features[: len(self.index)], self.index)
        if not len(self.index):  # its gradient is zero, and is there
            inputs["inputs_embeds"] = inputs["inputs_embeds"] + 0.0 * features.sum().to(inputs["inputs_embeds"].dtype)
        return {**inputs, "position_ids": self.positions}
