"""A packed row as batches of sequences of similar length, for attention kernels without packed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

PADDING = 1.2
"""Most padding of a sequence in a batch, as a multiple of its length."""


def buckets(lengths: Sequence[int], padding: float = PADDING) -> list[list[int]]:
    """Return groups of indices of sequences of about the same length, the longest first."""
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not groups or lengths[index] * padding < longest:
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return groups


@dataclass(slots=True, frozen=True, eq=False)
class PaddedLayout:
    """The mapping between the tokens of a row and a flat buffer of padded batches."""

    shapes: tuple[tuple[int, int], ...]
    """(sequences, tokens of the longest) of each batch."""
    source: Tensor
    """[sum of the areas of shapes], int64: token at each place; padding repeats the last token of its sequence."""
    place: Tensor
    """[num_tokens], int64: place of each token of the row."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> PaddedLayout:
        """Return the layout for sequences of these lengths."""
        starts = np.concatenate([[0], np.cumsum(lengths)])
        place = np.empty(starts[-1], np.int64)
        sources, shapes, used = [], [], 0
        for group in buckets(lengths):
            longest = lengths[group[0]]
            column = np.arange(longest)
            for index in group:
                length = lengths[index]
                sources.append(starts[index] + np.minimum(column, length - 1))
                place[starts[index] : starts[index + 1]] = used + column[:length]
                used += longest
            shapes.append((len(group), longest))
        source = torch.from_numpy(np.concatenate(sources)).to(device, non_blocking=True)
        return cls(tuple(shapes), source, torch.from_numpy(place).to(device, non_blocking=True))

    def batches(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Convert [num_tokens, ...] to one [sequences, longest, ...] per batch."""
        flat: Tensor = _Move.apply(rows, self.source, self.place)
        parts = flat.split([count * longest for count, longest in self.shapes])
        return tuple(part.unflatten(0, shape) for part, shape in zip(parts, self.shapes, strict=True))

    def pad(self, rows: Tensor) -> list[Tensor]:
        """Convert [num_tokens, heads, d] to one [sequences, heads, longest, d] per batch."""
        return [batch.transpose(1, 2) for batch in self.batches(rows)]

    def unpad(self, flat: Tensor) -> Tensor:
        """Convert [places, heads, d] to [num_tokens, heads, d]."""
        rows: Tensor = _Drop.apply(flat, self.place)
        return rows


class _Move(torch.autograd.Function):
    """Moves rows to their places.

    Padding has no gradient, because no result depends on it. So the backward is a gather, too; that of autograd would
    be a scatter with atomic additions.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, source: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return rows.index_select(0, source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return grad.index_select(0, place), None, None


class _Drop(torch.autograd.Function):
    """Takes rows from their places; no place is taken twice, so the backward is a copy."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.places = len(flat)
        return flat.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (place,) = ctx.saved_tensors
        return grad.new_zeros(ctx.places, *grad.shape[1:]).index_copy_(0, place, grad), None
