"""How the losses of tokens become the loss of a mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Aggregation(StrEnum):
    """A way to average, over the mini-batch as a whole."""

    TOKEN_MEAN = "token_mean"
    """Mean over all tokens (DAPO, arXiv 2503.14476)."""
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"
    """Sum within a trajectory, mean over trajectories."""
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    """Mean within a trajectory, mean over trajectories (GRPO, arXiv 2402.03300)."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq_mean_token_sum_norm"
    """Sum within a trajectory over a constant, mean over trajectories (Dr. GRPO, arXiv 2503.20783)."""


def token_weights(num_sampled: Sequence[int], how: Aggregation, norm: float = 1.0) -> NDArray[np.float64]:
    """What each sampled token of trajectory i counts, [num_trajectories].

    `num_sampled` has the sampled tokens of every trajectory of the mini-batch; `norm` is the constant of
    `SEQ_MEAN_TOKEN_SUM_NORM`. Raises `ValueError` where a trajectory has none.
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
