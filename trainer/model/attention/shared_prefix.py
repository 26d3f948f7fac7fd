"""Shared prefixes: a row contains a prompt once for several sequences.

The sequences of a group start with the same prompt. A row contains the prompt once, followed by the rest of each
sequence as its own segment, whose tokens also attend to the prompt. A token depends only on the tokens before it in its
sequence, so hidden states and gradients equal those of separate sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(slots=True, frozen=True, eq=False)
class SharedPrefixes:
    """The tokens of a row that attend to a prefix, and the tokens of the prefixes."""

    positions: tuple[int, ...]
    """Position in its sequence at which each segment of the row starts."""
    tensors: tuple[Tensor, Tensor, Tensor, Tensor]
    """`queries`, `keys`, `cu_q` and `cu_k`.

    `queries` [q] int64 are the tokens that attend to a prefix, and `keys` [k] int64 those of prefixes. `cu_q` and
    `cu_k` [prefixes + 1] int32 are the starts of each prefix in these two.
    """
    longest: tuple[int, int]
    """Most queries and most keys of one prefix."""

    @classmethod
    def of(
        cls, lengths: Sequence[int], parents: Sequence[int | None], device: torch.device | str = "cpu"
    ) -> SharedPrefixes:
        """Return the shared prefixes of a row from the length and the prefix segment, if any, of each segment.

        A prefix comes before its segments and has no prefix itself; both are asserted.
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
