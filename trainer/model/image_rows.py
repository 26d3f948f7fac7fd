"""The images of a packed row: their pixels, the places of their features, and the rotary positions of the row."""

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
    """The images of a row of `num_tokens`."""

    pixels: tuple[Tensor, ...]
    """uint8 [height, width, 3] each: an eighth of the tower's input, which is made on the device."""
    format: PixelFormat
    index: Tensor
    """int64; the tokens of the images, image after image. Empty for an image that no token shows."""
    positions: Tensor
    """[3, 1, num_tokens] int64, from `rope_positions`."""

    @classmethod
    def of(cls, placed: Sequence[PlacedImage], positions: NDArray[np.int64], device: torch.device | str) -> RowPictures:
        """Return the images `placed` in a row with the rotary `positions` [3, num_tokens]."""
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
        """Return a blank image for a row without images, because collectives inside the tower need every rank.

        `positions` [1, num_tokens] are those of the text.
        """
        blank = SeenImage(np.zeros((pixel_format.factor, pixel_format.factor, 3), np.uint8), pixel_format)
        device = positions.device
        nowhere = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(tuple(upload([blank], device)), pixel_format, nowhere, positions.expand(3, 1, -1))

    def inputs(self, backbone: Any, input_ids: Tensor) -> dict[str, Any]:
        """Return arguments of `backbone.language_model` that replace `input_ids` [1, num_tokens] and their positions.

        A frozen tower keeps nothing for a backward.
        """
        trained = any(parameter.requires_grad for parameter in backbone.visual.parameters())
        with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
            features = image_features(backbone, self.pixels, self.format)
        inputs = embedded(backbone, input_ids, features[: len(self.index)], self.index)
        if not len(self.index):  # gives the tower a gradient of zero
            inputs["inputs_embeds"] = inputs["inputs_embeds"] + 0.0 * features.sum().to(inputs["inputs_embeds"].dtype)
        return {**inputs, "position_ids": self.positions}
