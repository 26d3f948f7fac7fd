"""Images in the `hf` engine: ids in the slots, features, and rotary positions."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentloop.types.image import PlacedImage, SeenImage
from agentloop.vision.positions import rope_positions
from agentloop.vision.tower import image_features, upload

_MAX_FEATURES = 16384
"""Number of tokens whose features are kept for later chunks of a prompt and for other episodes of the group."""
_MAX_NAMES = 65536


@dataclass(slots=True, frozen=True)
class Shown:
    """Images of a prompt, and the rotary positions that follow from them."""

    images: tuple[PlacedImage, ...]
    positions: NDArray[np.int64]
    """Rotary positions, [3, prompt length], as `rope_positions` returns them."""

    @classmethod
    def of(cls, length: int, images: Sequence[PlacedImage]) -> Shown:
        return cls(tuple(images), rope_positions(length, images))

    @property
    def shift(self) -> int:
        """Difference between the rotary position and the index of later tokens."""
        return int(self.positions[:, -1].max()) + 1 - self.positions.shape[1]


@dataclass(slots=True, frozen=True)
class VisionStep:
    """Image inputs of one forward pass over `num_tokens` packed tokens."""

    positions: torch.Tensor
    """Rotary positions, [3, num_tokens]."""
    index: torch.Tensor
    """Indices of the tokens with features, int64 [k]."""
    features: torch.Tensor | None
    """Features [k, ...] as `image_features` returns them; None if k is 0."""


class ImageFeatures:
    """Ids and features of images for one model. Call all methods from the worker thread."""

    def __init__(self, model: Any) -> None:
        self._backbone = model.base_model
        self._names: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._next_name = -1
        self._features: collections.OrderedDict[str, torch.Tensor] = collections.OrderedDict()

    def named(self, prompt: NDArray[np.int32], images: Sequence[PlacedImage]) -> NDArray[np.int32]:
        """Return the prompt with the tokens of each image replaced by a negative number that identifies the image.

        Slots with equal tokens then have equal keys and values, while plain image tokens are equal for all images.
        """
        named = prompt.copy()
        for placed in images:
            named[placed.start : placed.end] = self._name(placed.image)
        return named

    def _name(self, image: SeenImage) -> int:
        if image.digest not in self._names:
            if len(self._names) >= _MAX_NAMES:
                self._names.popitem(last=False)
            self._names[image.digest] = self._next_name
            self._next_name -= 1
        self._names.move_to_end(image.digest)
        return self._names[image.digest]

    def forget_features(self) -> None:
        """Discard all features, because the weights have changed."""
        self._features.clear()

    def step(
        self,
        rows: Sequence[tuple[int, int, Shown | None]],
        shifted: NDArray[np.int64],
        device: torch.device,
    ) -> VisionStep:
        """Return the image inputs of a step.

        `rows` has, for each slot in packed order, the position of its first token, its number of tokens and its images.
        `shifted` [num_tokens] has the rotary positions for tokens after all images.
        """
        positions = np.repeat(shifted[None], 3, axis=0)
        index: list[NDArray[np.int64]] = []
        wanted: list[tuple[SeenImage, slice]] = []
        offset = 0
        for start, count, shown in rows:
            if shown is not None and start < shown.positions.shape[1]:
                positions[:, offset : offset + count] = shown.positions[:, start : start + count]
                for image, first in shown.images:
                    low, high = max(first, start), min(first + image.num_tokens, start + count)
                    if low < high:
                        index.append(np.arange(low, high) - start + offset)
                        wanted.append((image, slice(low - first, high - first)))
            offset += count
        features = self._of([image for image, _ in wanted])
        parts = [features[image.digest][part] for image, part in wanted]
        return VisionStep(
            torch.from_numpy(positions).to(device),
            torch.from_numpy(np.concatenate(index) if index else np.zeros(0, np.int64)).to(device),
            torch.cat(parts) if parts else None,
        )

    def _of(self, images: Sequence[SeenImage]) -> dict[str, torch.Tensor]:
        """Return features by digest; compute missing ones in one pass of the tower."""
        new = list({image.digest: image for image in images if image.digest not in self._features}.values())
        if new:
            device = next(self._backbone.parameters()).device
            computed = image_features(self._backbone, upload(new, device), new[0].format)
            parts = computed.split([image.num_tokens for image in new])
            self._features.update({image.digest: part.clone() for image, part in zip(new, parts, strict=True)})
        found = {image.digest: self._features[image.digest] for image in images}
        for digest in found:
            self._features.move_to_end(digest)
        kept = sum(map(len, self._features.values()))
        while kept > _MAX_FEATURES and len(self._features) > 1:
            kept -= len(self._features.popitem(last=False)[1])
        return found
