"""Discounted sums."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray


def discounted(values: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """Sum of the values from each place on, the one d places later times gamma^d, [n]."""
    backwards = values[::-1]
    if gamma == 1.0:
        return np.cumsum(backwards)[::-1]
    # Lists: a loop over millions of elements of an array would take seconds.
    sums = accumulate(backwards.tolist(), lambda later, value: value + gamma * later)
    return np.fromiter(sums, np.float64, len(values))[::-1]
