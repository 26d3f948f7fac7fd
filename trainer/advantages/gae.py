"""Generalised advantage estimation (arXiv 1506.02438): a critic's value is the baseline of each sampled token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agentloop.registry.options import Config
from agentloop.trainer.advantages.base import AdvantageValue, discounted, register_outcomes
from agentloop.trainer.advantages.normalised import normalise
from agentloop.trainer.advantages.outcome import Outcome


class GaeOptions(Config):
    """Options of `gae`. A time step is a sampled token; observation tokens are not steps."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per sampled token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's lambda: 1 has no bias, lower values rely more on the critic and have less variance."""
    critic_lam: float = Field(default=1.0, ge=0, le=1)
    """`lam` of the critic's targets; at 1 they do not depend on the critic (VC-PPO, arXiv 2503.01491)."""


def value_targets(outcome: Outcome, options: GaeOptions) -> NDArray[np.float32]:
    """Return the critic's target at each sampled token, value + advantage with `critic_lam`, [num_sampled]."""
    assert outcome.values is not None
    return (outcome.values + _gae(outcome, options.gamma, options.critic_lam)).astype(np.float32)


@register_outcomes("gae", GaeOptions, compares=False, value_targets=value_targets)
def gae(groups: Sequence[Sequence[Outcome]], options: GaeOptions) -> list[list[AdvantageValue]]:
    """Return sums of (gamma lam)^k (r + gamma V' - V) of the k-th later token, normalised over all tokens of the step.

    The reward of a turn is at its last token, a penalty at its token, and the rest of the reward at the last token.
    """
    return normalise([[_gae(outcome, options.gamma, options.lam) for outcome in group] for group in groups])


def _gae(outcome: Outcome, gamma: float, lam: float) -> NDArray[np.float64]:
    """Return the advantages before normalisation, [num_sampled]."""
    values = outcome.values
    if outcome.num_sampled == 0:
        return np.zeros(0)
    assert values is not None, "gae needs a critic"
    deltas = _rewards(outcome) + gamma * np.append(values[1:], 0.0) - values
    return discounted(deltas, gamma * lam)


def _rewards(outcome: Outcome) -> NDArray[np.float64]:
    """Return the reward of each sampled token, [num_sampled]."""
    rewards = np.zeros(outcome.num_sampled) if outcome.penalties is None else -outcome.penalties
    turn_rewards = outcome.turn_rewards
    rewards[np.cumsum(outcome.turn_lengths) - 1] += turn_rewards
    rewards[-1] += outcome.final_reward - turn_rewards.sum()
    return rewards
