"""One advantage per trajectory: its reward relative to the other episodes of the same task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentloop.registry.options import NoOptions
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
    """Return (r - mean) / std, with the sample standard deviation (n - 1) (DeepSeekMath, arXiv 2402.03300)."""
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


@register("dr_grpo")
def dr_grpo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return r - mean: dividing by std overweights groups that are almost all right or all wrong (arXiv 2503.20783)."""
    return rewards - rewards.mean()


@register("rloo")
def rloo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return r - mean of the other rewards, an unbiased baseline (arXiv 2402.14740)."""
    n = len(rewards)
    return (rewards - rewards.mean()) * (n / (n - 1))


@register_outcomes("gpg")
def gpg(groups: Sequence[Sequence[Outcome]], options: NoOptions) -> list[list[AdvantageValue]]:
    """Return r - mean, scaled up if few trajectories of the step have a reward (GPG, arXiv 2504.02546, as in verl).

    The scale is the number of trajectories of the step divided by the number with a nonzero reward. Use it with loss
    `reinforce`.
    """
    rewards = [rewards_of(group) for group in groups]
    num_rewarded = sum(int((values != 0).sum()) for values in rewards)
    scale = sum(map(len, rewards)) / max(num_rewarded, 1)
    return [list(scale * relative(values, lambda each: each - each.mean())) for values in rewards]


@register_outcomes("opo")
def opo(groups: Sequence[Sequence[Outcome]], options: NoOptions) -> list[list[AdvantageValue]]:
    """Return r - mean reward weighted by the number of sampled tokens of each episode (OPO, arXiv 2505.23585).

    This approximates the baseline with minimal variance, because longer trajectories have larger gradients.
    """
    return [_opo(group) for group in groups]


def _opo(group: Sequence[Outcome]) -> list[AdvantageValue]:
    lengths = np.array([outcome.num_sampled + outcome.other_sampled for outcome in group], dtype=np.float64)
    if not lengths.any():
        return [0.0] * len(group)
    return list(relative(rewards_of(group), lambda rewards: rewards - (lengths * rewards).sum() / lengths.sum()))


@register_outcomes("remax", compares=False, needs_greedy=True)
def remax(groups: Sequence[Sequence[Outcome]], options: NoOptions) -> list[list[AdvantageValue]]:
    """Return r - reward of the greedy episode of the task, or 0 if that was not judged (ReMax, arXiv 2310.10505)."""
    return [
        [0.0 if outcome.baseline is None else outcome.reward - outcome.baseline for outcome in group]
        for group in groups
    ]
