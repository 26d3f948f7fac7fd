"""Average the losses of tokens into the loss of a mini-batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentloop.config.learner import Aggregation


def token_weights(num_sampled: Sequence[int], how: Aggregation, norm: float = 1.0) -> NDArray[np.float64]:
    """Return the weight of each sampled token of trajectory i, [num_trajectories].

    `num_sampled[i]` is the number of sampled tokens of trajectory i, over the whole mini-batch. `norm` is the constant
    of `SEQ_MEAN_TOKEN_SUM_NORM`. Raises `ValueError` if a trajectory has no sampled token.
    """
    counts = np.asarray(num_sampled, dtype=np.float64)
    if len(counts) and counts.min() < 1:
        raise ValueError("every trajectory of a mini-batch needs at least one sampled token")
    match how:
        case Aggregation.TOKEN_MEAN:
            return np.full(len(counts), 1.0 / max(counts.sum(), 1.0))
        case Aggregation.SEQ_MEAN_TOKEN_SUM:
            return np.full(len(counts), 1.0 / max(len(counts), 1))
        case Aggregation.SEQ_MEAN_TOKEN_MEAN:
            return 1.0 / (counts * len(counts))
        case Aggregation.SEQ_MEAN_TOKEN_SUM_NORM:
            return np.full(len(counts), 1.0 / (max(len(counts), 1) * norm))
