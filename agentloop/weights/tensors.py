"""Weights as tensors of this process, for a learner in the same process as its engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from agentloop.weights.shelf import SharedWeights, WeightShelf


class TensorWeights:
    """A `WeightHandle` over pairs of name and tensor, which may be generated lazily."""

    def __init__(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._weights = weights

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._weights)

    def shared(self, shelf: WeightShelf) -> SharedWeights:
        return shelf.put(self._weights)
