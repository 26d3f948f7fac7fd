"""Advantages from token rewards of a process reward model that learns only from outcomes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agentloop.registry.options import Config
from agentloop.trainer.advantages.base import AdvantageValue, discounted, register_outcomes, relative, rewards_of
from agentloop.trainer.advantages.outcome import Outcome
from agentloop.trainer.advantages.relative import rloo


class PrimeOptions(Config):
    """Options of `prime`."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per sampled token."""
    process_weight: float = Field(default=1.0, ge=0)
    """Weight of the token rewards; the outcome has weight 1."""


@register_outcomes("prime", PrimeOptions, needs_process_rewards=True)
def prime(groups: Sequence[Sequence[Outcome]], options: PrimeOptions) -> list[list[AdvantageValue]]:
    """Return `rloo` of the outcomes plus discounted returns of the token rewards (PRIME, arXiv 2502.01456, equation 5).

    The mean token reward of the other episodes is subtracted from each token reward first.
    """
    return [_prime(group, options) for group in groups]


def _prime(group: Sequence[Outcome], options: PrimeOptions) -> list[AdvantageValue]:
    outcomes = relative(rewards_of(group), rloo)
    means = np.array([np.nan if part is None else part.mean() for part in map(_process_rewards, group)])
    advantages: list[AdvantageValue] = []
    for place, (outcome, of_outcome) in enumerate(zip(group, outcomes, strict=True)):
        rewards, others = _process_rewards(outcome), np.delete(means, place)
        others = others[~np.isnan(others)]
        if rewards is None or len(others) == 0:
            advantages.append(float(of_outcome))
            continue
        returns = discounted(rewards.astype(np.float64) - others.mean(), options.gamma)
        advantages.append((of_outcome + options.process_weight * returns).astype(np.float32))
    return advantages


def _process_rewards(outcome: Outcome) -> NDArray[np.float32] | None:
    """Return the token rewards, or None if nothing was sampled."""
    assert outcome.process_rewards is not None or outcome.num_sampled == 0, "prime needs a process reward model"
    return outcome.process_rewards if outcome.num_sampled else None
