"""Advantages that are normalised over all sampled tokens of the step instead of within groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agentloop.registry.options import Config, NoOptions
from agentloop.trainer.advantages.base import AdvantageValue, discounted, register_outcomes, rewards_of
from agentloop.trainer.advantages.outcome import Outcome


class ReinforcePpOptions(Config):
    """Options of `reinforce_pp`."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per sampled token; observation tokens do not count."""


@register_outcomes("reinforce_pp", ReinforcePpOptions, compares=False)
def reinforce_pp(groups: Sequence[Sequence[Outcome]], options: ReinforcePpOptions) -> list[list[AdvantageValue]]:
    """Return the return of each token with KL penalties, normalised over the step (REINFORCE++, arXiv 2501.03262)."""
    return normalise([[_returns(outcome, options.gamma) for outcome in group] for group in groups])


@register_outcomes("reinforce_pp_baseline", NoOptions)
def reinforce_pp_baseline(groups: Sequence[Sequence[Outcome]], options: NoOptions) -> list[list[AdvantageValue]]:
    """Return r - mean of the group, normalised over all tokens of the step (REINFORCE++-baseline, arXiv 2501.03262)."""
    centred = [rewards_of(group) - rewards_of(group).mean() if group else np.zeros(0) for group in groups]
    return normalise(
        [
            [np.full(outcome.num_sampled, value) for outcome, value in zip(group, values, strict=True)]
            for group, values in zip(groups, centred, strict=True)
        ]
    )


def _returns(outcome: Outcome, gamma: float) -> NDArray[np.float64]:
    """Return the discounted return at each sampled token, [num_sampled]; the final reward is at the last token."""
    rewards = np.zeros(outcome.num_sampled) if outcome.penalties is None else -outcome.penalties
    if len(rewards):
        rewards[-1] += outcome.final_reward
    return discounted(rewards, gamma)


def normalise(groups: list[list[NDArray[np.float64]]]) -> list[list[AdvantageValue]]:
    """Return (a - mean) / std over all tokens, or zeros if all are equal."""
    arrays = [array for group in groups for array in group if len(array)]
    tokens = np.concatenate(arrays) if arrays else np.zeros(1)
    mean, scale = tokens.mean(), 0.0 if (tokens == tokens[0]).all() else 1 / (tokens.std(ddof=1) + 1e-8)
    return [[_compact((array - mean) * scale) for array in group] for group in groups]


def _compact(values: NDArray[np.float64]) -> AdvantageValue:
    """Return one number if all values are equal, else the array."""
    if len(values) == 0 or (values == values[0]).all():
        return float(values[0]) if len(values) else 0.0
    return values.astype(np.float32)
