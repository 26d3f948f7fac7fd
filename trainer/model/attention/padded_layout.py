"""A packed row as batches of sequences of similar length, for attention kernels that know no packed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

PADDING = 1.2
"""Sequences share a batch if none of them is padded to more than this times its length."""


def buckets(lengths: Sequence[int], padding: float = PADDING) -> list[list[int]]:
    """Indices of sequences of about the same length, longest first."""
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
    """Where each token of a row is in a flat buffer of padded batches, and back."""

    shapes: tuple[tuple[int, int], ...]
    """(sequences, tokens of the longest) of each batch."""
    source: Tensor
    """[sum of the areas of shapes], int64: the token in each place; where padding is, some token of the sequence."""
    place: Tensor
    """[num_tokens], int64: where each token of the row is."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> PaddedLayout:
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

    def pad(self, rows: Tensor) -> list[Tensor]:
        """[num_tokens, heads, d] to one [sequences, heads, longest, d] for each batch."""
        flat: Tensor = _Move.apply(rows, self.source, self.place)
        parts = flat.split([count * longest for count, longest in self.shapes])
        return [part.unflatten(0, shape).transpose(1, 2) for part, shape in zip(parts, self.shapes, strict=True)]

    def unpad(self, flat: Tensor) -> Tensor:
        """[places, heads, d] to [num_tokens, heads, d]."""
        rows: Tensor = _Drop.apply(flat, self.place)
        return rows


class _Move(torch.autograd.Function):
    """Rows into their places. Padding gets no gradient (nothing that is kept depends on it), so the way back is a
    gather too, where autograd's own would be a scatter with atomic additions."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, source: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return rows.index_select(0, source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return grad.index_select(0, place), None, None


class _Drop(torch.autograd.Function):
    """Rows out of their places; no place is taken twice, so its gradient is a copy."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.places = len(flat)
        return flat.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (place,) = ctx.saved_tensors
        return grad.new_zeros(ctx.places, *grad.shape[1:]).index_copy_(0, place, grad), None
