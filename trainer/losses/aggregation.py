"""Weights that average token losses to the loss of a mini-batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentloop.config.learner import Aggregation


def token_weights(
    num_sampled: Sequence[int], how: Aggregation, norm: float = 1.0, *, episodes: Sequence[int | None] | None = None
) -> NDArray[np.float64]:
    """Return the weight of each sampled token of trajectory i, [num_trajectories].

    `num_sampled[i]` is the number of sampled tokens of trajectory i, over the whole mini-batch. `norm` is the constant
    of `SEQ_MEAN_TOKEN_SUM_NORM`. Trajectories with the same number in `episodes` are streams of one episode and count
    as one trajectory; None marks a separate episode. Raises `ValueError` if a trajectory has no sampled token.
    """
    counts = np.asarray(num_sampled, dtype=np.float64)
    if len(counts) and counts.min() < 1:
        raise ValueError("every trajectory of a mini-batch needs at least one sampled token")
    numbers = [None] * len(counts) if episodes is None else episodes
    _, of_episode = np.unique([-1 - i if n is None else n for i, n in enumerate(numbers)], return_inverse=True)
    num_episodes = max(of_episode.max(initial=-1) + 1, 1)
    match how:
        case Aggregation.TOKEN_MEAN:
            return np.full(len(counts), 1.0 / max(counts.sum(), 1.0))
        case Aggregation.SEQ_MEAN_TOKEN_SUM:
            return np.full(len(counts), 1.0 / num_episodes)
        case Aggregation.SEQ_MEAN_TOKEN_MEAN:
            return 1.0 / (np.bincount(of_episode, counts)[of_episode] * num_episodes)
        case Aggregation.SEQ_MEAN_TOKEN_SUM_NORM:
            return np.full(len(counts), 1.0 / (num_episodes * norm))
