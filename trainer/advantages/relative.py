"""One advantage a trajectory: its reward against those of the other episodes of the same task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentloop.registry.registry import NoOptions
from agentloop.trainer.advantages.base import (
    AdvantageValue,
    register,
    register_outcomes,
    relative,
    rewards_of,
)
from agentloop.trainer.advantages.outcome import Outcome


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


@register_outcomes("gpg")
def gpg(groups: Sequence[Sequence[Outcome]], options: NoOptions) -> list[list[AdvantageValue]]:
    """r - mean, times the trajectories of the step over those with a reward that is not 0: what a batch with little
    reward says counts more. GPG, arXiv 2504.02546, as verl has it; with the loss `reinforce`."""
    rewards = [rewards_of(group) for group in groups]
    told = sum(int((values != 0).sum()) for values in rewards)
    scale = sum(map(len, rewards)) / max(told, 1)
    return [list(scale * relative(values, lambda each: each - each.mean())) for values in rewards]


@register_outcomes("opo")
def opo(groups: Sequence[Sequence[Outcome]], options: NoOptions) -> list[list[AdvantageValue]]:
    """r - mean of rewards weighted with the sampled tokens: close to the baseline of least variance, since a longer
    trajectory has a larger gradient. arXiv 2505.23585."""
    return [_opo(group) for group in groups]


def _opo(group: Sequence[Outcome]) -> list[AdvantageValue]:
    lengths = np.array([outcome.num_sampled for outcome in group], dtype=np.float64)
    if not lengths.any():
        return [0.0] * len(group)
    return list(relative(rewards_of(group), lambda rewards: rewards - (lengths * rewards).sum() / lengths.sum()))


@register_outcomes("remax", compares=False, needs_greedy=True)
def remax(groups: Sequence[Sequence[Outcome]], options: NoOptions) -> list[list[AdvantageValue]]:
    """r - reward of the greedy episode of the task; 0 where that one could not be judged. arXiv 2310.10505."""
    return [
        [0.0 if outcome.baseline is None else outcome.reward - outcome.baseline for outcome in group]
        for group in groups
    ]
