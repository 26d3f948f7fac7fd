"""Advantages relative to a group: small functions from the rewards of one group to one advantage a trajectory.

A reward that is None or not finite means that judging failed: such a trajectory is left out of the group's statistics
and its advantage is NaN, for the caller to drop; it is never taken as a reward of 0. A group in which fewer than two
rewards are left, or in which all are equal, says nothing about which trajectory was better: its advantages are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from agentloop.errors import UserError, nearest

AdvantageFn = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Finite rewards of one group, [n] with n >= 2, to advantages, [n]."""

_REGISTRY: dict[str, AdvantageFn] = {}


def register(name: str) -> Callable[[AdvantageFn], AdvantageFn]:
    """Decorator: make an advantage function known under a name. A name can be taken once."""

    def add(function: AdvantageFn) -> AdvantageFn:
        if name in _REGISTRY:
            raise ValueError(f"the advantage {name!r} is registered already")
        _REGISTRY[name] = function
        return function

    return add


def get(name: str) -> AdvantageFn:
    """The registered function. Raises `UserError` with the nearest name."""
    if name not in _REGISTRY:
        raise UserError(
            f"There is no advantage {name!r}.{nearest(name, _REGISTRY)} Set advantage to one of: "
            f"{', '.join(sorted(_REGISTRY))}."
        )
    return _REGISTRY[name]


def group_advantages(rewards: Sequence[float | None], name: str = "grpo") -> NDArray[np.float64]:
    """Advantages of one group, [n]; NaN where there is no reward to judge by.

    Raises `UserError` for an unknown name.
    """
    function = get(name)
    values = np.array([np.nan if reward is None else reward for reward in rewards], dtype=np.float64)
    known = np.isfinite(values)
    advantages = np.full(len(values), np.nan)
    judged = values[known]
    # Equal rewards are compared as such: their computed standard deviation may be 1e-17, and dividing by it is noise.
    if len(judged) < 2 or (judged == judged[0]).all():
        advantages[known] = 0.0
    else:
        advantages[known] = function(judged)
    return advantages


@register("grpo")
def grpo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """(r - mean) / std, with the sample standard deviation (n - 1). DeepSeekMath, arXiv 2402.03300."""
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


@register("dr_grpo")
def dr_grpo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """r - mean: without the division, which favours groups that are nearly all right or all wrong. arXiv 2503.20783."""
    return rewards - rewards.mean()


@register("rloo")
def rloo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """r - mean of the others: an unbiased baseline. arXiv 2402.14740."""
    n = len(rewards)
    return (rewards - rewards.mean()) * (n / (n - 1))
