"""Generalised advantage estimation (arXiv 1506.02438): a critic's values as the baseline of each sampled token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agentloop.registry.options import Config
from agentloop.trainer.advantages.base import AdvantageValue, register_outcomes
from agentloop.trainer.advantages.discounting import discounted
from agentloop.trainer.advantages.normalised import normalise
from agentloop.trainer.advantages.outcome import Outcome


class GaeOptions(Config):
    """Tokens are sampled tokens: observations between two of them are part of what the first one led to."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount a token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """1: the whole return, without bias; less: more of the critic's opinion, with less variance."""
    critic_lam: float = Field(default=1.0, ge=0, le=1)
    """The same of what the critic learns; at 1 its targets do not depend on itself (VC-PPO, arXiv 2503.01491)."""


def value_targets(outcome: Outcome, options: GaeOptions) -> NDArray[np.float32]:
    """What the critic should have said at each sampled token, [num_sampled]."""
    assert outcome.values is not None
    return (outcome.values + _gae(outcome, options.gamma, options.critic_lam)).astype(np.float32)


@register_outcomes("gae", GaeOptions, compares=False, value_targets=value_targets)
def gae(groups: Sequence[Sequence[Outcome]], options: GaeOptions) -> list[list[AdvantageValue]]:
    """sum of (gamma lam)^k (r + gamma V' - V), k tokens later; normalised over all tokens of the step as in PPO.

    Rewards of turns come at the last token of their turn, penalties at their token, the rest at the very end.
    """
    return normalise([[_gae(outcome, options.gamma, options.lam) for outcome in group] for group in groups])


def _gae(outcome: Outcome, gamma: float, lam: float) -> NDArray[np.float64]:
    """[num_sampled], before normalisation."""
    values = outcome.values
    if outcome.num_sampled == 0:
        return np.zeros(0)
    assert values is not None, "gae needs a critic"
    deltas = _rewards(outcome) + gamma * np.append(values[1:], 0.0) - values
    return discounted(deltas, gamma * lam)


def _rewards(outcome: Outcome) -> NDArray[np.float64]:
    """Of each sampled token."""
    rewards = np.zeros(outcome.num_sampled) if outcome.penalties is None else -outcome.penalties
    turn_rewards = outcome.turn_rewards
    rewards[np.cumsum(outcome.turn_lengths) - 1] += turn_rewards
    rewards[-1] += outcome.final_reward - turn_rewards.sum()
    return rewards
