"""Forbid tokens in logits, in the hf engine and in the learner. vLLM and SGLang have their own kernels."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_FORBIDDEN = -1e30
"""Logit of a forbidden token: its probability is 0, and unlike minus infinity it can be multiplied by 0."""
_ROWS = 64
"""Number of rows to expand at once, each to 4 bytes per token of the vocabulary."""


def forbid_(logits: Tensor, places: NDArray[np.int64], bits: Tensor, first: int = 0) -> Tensor:
    """Overwrite the logits of forbidden tokens in the rows `places`, and return the logits [num_rows, vocabulary].

    `bits` int32 [len(places), words] come from `Masks`. `first` is the first token of the vocabulary in `logits`.
    """
    columns = torch.arange(first, first + logits.shape[1], device=logits.device)
    words, shifts = columns >> 5, (columns & 31).to(torch.int32)
    lowest = max(_FORBIDDEN, torch.finfo(logits.dtype).min)
    for start in range(0, len(places), _ROWS):
        rows = torch.from_numpy(places[start : start + _ROWS]).to(logits.device)
        is_forbidden = (bits[start : start + _ROWS].index_select(1, words) >> shifts) & 1 == 0
        logits[rows] = logits[rows].masked_fill_(is_forbidden, lowest)
    return logits
