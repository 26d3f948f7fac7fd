"""Prefixes that several sequences of a row share, in the row once.

The sequences of a group start with the same prompt. A row then holds the prompt once and the rest of each sequence
after it: a segment of its own each, whose tokens also look at the prompt. What a token computes depends on nothing but
the tokens before it in its sequence, so hidden states and gradients are those of the sequences one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(slots=True, frozen=True, eq=False)
class SharedPrefixes:
    """Which tokens of a row look at which prefix."""

    positions: tuple[int, ...]
    """Position in its sequence at which each segment of the row starts."""
    tensors: tuple[Tensor, Tensor, Tensor, Tensor]
    """`queries`: the tokens that look at a prefix, [q] int64. `keys`: those in one, [k] int64. `cu_q`, `cu_k`
    [prefixes + 1] int32: where the tokens of each prefix start in these two."""
    longest: tuple[int, int]
    """Most queries and most keys of one prefix."""

    @classmethod
    def of(
        cls, lengths: Sequence[int], parents: Sequence[int | None], device: torch.device | str = "cpu"
    ) -> SharedPrefixes:
        """From the lengths of the segments of a row and for each the one that is its prefix.

        A prefix comes before its segments and has none itself; both are asserted.
        """
        starts = np.concatenate([[0], np.cumsum(lengths)])
        children: dict[int, list[int]] = {}
        for segment, parent in enumerate(parents):
            if parent is not None:
                assert parent < segment, "a prefix comes before its segments"
                assert parents[parent] is None, "a prefix has no prefix itself"
                children.setdefault(parent, []).append(segment)
        spans = [np.arange(starts[i], starts[i + 1]) for i in range(len(lengths))]
        queries = [np.concatenate([spans[child] for child in found]) for found in children.values()]
        keys = [spans[parent] for parent in children]
        cu_q, cu_k = (np.cumsum([0, *map(len, parts)]).astype(np.int32) for parts in (queries, keys))
        arrays = np.concatenate(queries), np.concatenate(keys), cu_q, cu_k
        first, second, third, fourth = (torch.from_numpy(a).to(device, non_blocking=True) for a in arrays)
        return cls(
            tuple(0 if parent is None else lengths[parent] for parent in parents),
            (first, second, third, fourth),
            (max(map(len, queries)), max(map(len, keys))),
        )
