"""Chunks of the LM head: the logits of a few tokens at a time are computed, used and dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Units = Sequence[int] | NDArray[np.int64]
"""Numbers of consecutive tokens that belong together, in order."""

_CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 832 * 2**20}
"""Bytes of the logits of one chunk.

On a CPU a chunk fits the caches. On a GPU chunks are few, because each reads and writes the whole gradient of the head,
but stay below 1 GiB with all temporaries.
"""
_ROWS = 128
"""Tokens of a chunk are a multiple of this, the tile of a matrix product."""
_FEW_CHUNKS = 4
"""Most chunks summed in the dtype of the weight; their rounding error is sqrt(4 / 3) times that of the last one."""


def chunks(num_tokens: int, weight: Tensor, chunk_tokens: int | None = None) -> list[slice]:
    """Return slices of about equal size that cover [0, num_tokens); `weight` [vocab, hidden_size]."""
    if chunk_tokens is None:
        count = -(-num_tokens // _most_tokens(weight))
        chunk_tokens = -(-num_tokens // max(count, 1) // _ROWS) * _ROWS or 1
    return [slice(start, min(start + chunk_tokens, num_tokens)) for start in range(0, num_tokens, chunk_tokens)]


def _most_tokens(weight: Tensor) -> int:
    most = _CHUNK_BYTES.get(weight.device.type, 2**28) // (weight.element_size() * weight.shape[0])
    return max(most // _ROWS * _ROWS, _ROWS)


def groups(
    num_tokens: int, weight: Tensor, chunk_tokens: int | None = None, units: Units | None = None
) -> list[list[slice]]:
    """Return groups of chunks whose gradients need the log-probabilities of the whole group.

    Without `units` each chunk is a group. With `units` a group holds as many units as fit a chunk; a longer unit has
    several chunks.
    """
    if units is None:
        return [[rows] for rows in chunks(num_tokens, weight, chunk_tokens)]
    most = chunk_tokens or _most_tokens(weight)
    found: list[list[slice]] = []
    start = end = 0
    for size in [*map(int, units), num_tokens + most]:  # the last size is a sentinel that ends the last group
        if end > start and end - start + size > most:
            parts = chunks(end - start, weight, chunk_tokens)
            found.append([slice(start + part.start, start + part.stop) for part in parts])
            start = end
        end += size
    return found


class HeadGradient:
    """Collects d loss / d hidden and d loss / d weight from the logit gradients of chunks."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, num_chunks: int, *, of_hidden: bool = True, of_weight: bool = True
    ) -> None:
        self._inputs = hidden, weight
        exact = weight.dtype if num_chunks <= _FEW_CHUNKS else torch.float32
        self.hidden = torch.empty_like(hidden) if of_hidden else None
        """[num_tokens, hidden_size], in the dtype of `hidden`."""
        empty = torch.empty_like if num_chunks else torch.zeros_like
        self.weight = empty(weight, dtype=exact) if of_weight else None
        """[vocab, hidden_size], float32 with many chunks, else in the dtype of the weight.

        It is zeros without tokens, because other ranks wait for it.
        """
        self._is_first = True

    def add(self, rows: slice, grad_logits: Tensor) -> None:
        """Add a chunk with `grad_logits` [tokens of the chunk, vocab] in the dtype of `hidden`."""
        hidden, weight = self._inputs
        if self.hidden is not None:
            torch.mm(grad_logits, weight, out=self.hidden[rows])
        if self.weight is not None:
            _accumulate(self.weight, grad_logits.t(), hidden[rows], is_first=self._is_first)
        self._is_first = False


def _accumulate(total: Tensor, left: Tensor, right: Tensor, *, is_first: bool) -> None:
    """Add left @ right to `total`, or overwrite it the first time."""
    if total.dtype == left.dtype:
        torch.addmm(total, left, right, beta=0 if is_first else 1, out=total)
    elif left.is_cuda:
        if is_first:
            torch.mm(left, right, torch.float32, out=total)
        else:
            torch.addmm(total, left, right, torch.float32, out=total)
    elif is_first:
        total.copy_(left.float() @ right.float())
    else:
        total.add_(left.float() @ right.float())
