"""`AllowedTokens`: masks of the vocabulary for tokens that were sampled with a grammar."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentloop.grammars.logits import forbid_


@dataclass(slots=True, frozen=True, eq=False)
class AllowedTokens:
    """Masks of some of the trained tokens of a row; the others have the whole vocabulary."""

    places: NDArray[np.int64]
    """Indices of the constrained among the trained tokens, ascending, [num_masks]."""
    bits: Tensor
    """int32 [num_masks, ceil(vocabulary / 32)]; bit i of word w is set if token 32 w + i is allowed."""
    first: int = 0
    """First token of the vocabulary that the logits have."""

    def rows(self, rows: slice) -> AllowedTokens | None:
        """Return the masks of the trained tokens `rows`, counted from there; None if they have none."""
        start, end = np.searchsorted(self.places, [rows.start, rows.stop])
        if start == end:
            return None
        return replace(self, places=self.places[start:end] - rows.start, bits=self.bits[start:end])

    def chosen(self, kept: NDArray[np.int64]) -> AllowedTokens | None:
        """Return the masks of the trained tokens with these ascending indices, counted among them; None without any."""
        own, of_mask, of_kept = np.intersect1d(self.places, kept, assume_unique=True, return_indices=True)
        if not len(own):
            return None
        return replace(self, places=of_kept, bits=self.bits[torch.from_numpy(of_mask).to(self.bits.device)])

    def part(self, first: int) -> AllowedTokens:
        """Return the masks for logits that begin with token `first` of the vocabulary."""
        return replace(self, first=first)

    def forbid_(self, logits: Tensor) -> Tensor:
        """Overwrite the logits of tokens that are not allowed; `logits` [num_trained, vocab]."""
        return forbid_(logits, self.places, self.bits, self.first)
