"""The LM head a few tokens at a time: the logits of a chunk are computed, used and dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Units = Sequence[int] | NDArray[np.int64]
"""How many tokens in a row belong together, in order."""

_CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 832 * 2**20}
"""Logits of one chunk: near the caches of a CPU; on a GPU few chunks, since each reads and writes the whole gradient
of the head, yet below 1 GiB with all that belongs to it."""
_ROWS = 128
"""Chunks are a multiple of this, the tile of a matrix product."""
_FEW_CHUNKS = 4
"""So many chunks are summed in the dtype of the weight: they round it by sqrt(4 / 3) as much as the last chunk must."""


def chunks(num_tokens: int, weight: Tensor, chunk_tokens: int | None = None) -> list[slice]:
    """Slices of about equal size that cover [0, num_tokens); `weight` [vocab, hidden_size]."""
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
    """Chunks that must be known together before the gradient of any of them is: one each, or with `units`, how many
    tokens in a row belong together, those of as many units as a chunk holds; a unit that is longer has several."""
    if units is None:
        return [[rows] for rows in chunks(num_tokens, weight, chunk_tokens)]
    most = chunk_tokens or _most_tokens(weight)
    found: list[list[slice]] = []
    start = end = 0
    for size in [*map(int, units), num_tokens + most]:  # the last one is none: it ends the chunk before it
        if end > start and end - start + size > most:
            parts = chunks(end - start, weight, chunk_tokens)
            found.append([slice(start + part.start, start + part.stop) for part in parts])
            start = end
        end += size
    return found


class HeadGradient:
    """Collects d loss / d hidden and d loss / d weight from the gradients of the logits of chunks."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, num_chunks: int, *, of_hidden: bool = True, of_weight: bool = True
    ) -> None:
        self._inputs = hidden, weight
        exact = weight.dtype if num_chunks <= _FEW_CHUNKS else torch.float32
        self.hidden = torch.empty_like(hidden) if of_hidden else None
        """[num_tokens, hidden_size], in its dtype."""
        empty = torch.empty_like if num_chunks else torch.zeros_like
        self.weight = empty(weight, dtype=exact) if of_weight else None
        """[vocab, hidden_size], float32 where there are many chunks, else as the weight; zeros without tokens, since
        other ranks wait for it."""
        self._is_first = True

    def add(self, rows: slice, grad_logits: Tensor) -> None:
        """`grad_logits` [tokens of the chunk, vocab] in the dtype of `hidden`."""
        hidden, weight = self._inputs
        if self.hidden is not None:
            torch.mm(grad_logits, weight, out=self.hidden[rows])
        if self.weight is not None:
            _accumulate(self.weight, grad_logits.t(), hidden[rows], is_first=self._is_first)
        self._is_first = False


def _accumulate(total: Tensor, left: Tensor, right: Tensor, *, is_first: bool) -> None:
    """total += left @ right; the first time it is overwritten."""
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
