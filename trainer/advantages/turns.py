"""One advantage per turn, for environments that reward turns; discounts apply per turn, not per token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agentloop.registry.options import Config
from agentloop.trainer.advantages.base import AdvantageValue, discounted, register_outcomes, relative, rewards_of
from agentloop.trainer.advantages.outcome import Outcome
from agentloop.trainer.advantages.relative import dr_grpo, grpo


class TurnGrpoOptions(Config):
    """Options of `turn_grpo`."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per turn."""
    outcome_weight: float = Field(default=1.0, ge=0)
    """Weight of the rest of the reward, which gives all turns of an episode the same advantage."""
    normalise: bool = True
    """Whether to divide by the standard deviation."""


@register_outcomes("turn_grpo", TurnGrpoOptions)
def turn_grpo(groups: Sequence[Sequence[Outcome]], options: TurnGrpoOptions) -> list[list[AdvantageValue]]:
    """Return discounted returns of normalised turn rewards, plus GRPO of the rest of the reward.

    Turn rewards are normalised over all turns of the group: DeepSeekMath's GRPO with process supervision (arXiv
    2402.03300, 4.1.3) with turns as steps. Outcome and turn parts are added as in MT-GRPO (arXiv 2505.11821).
    """
    return [_turn_grpo(group, options) for group in groups]


def _turn_grpo(group: Sequence[Outcome], options: TurnGrpoOptions) -> list[AdvantageValue]:
    compare = grpo if options.normalise else dr_grpo
    turn_rewards = [outcome.turn_rewards for outcome in group]
    if not turn_rewards:
        return []
    normalised = _split(relative(np.concatenate(turn_rewards), compare), [len(rewards) for rewards in turn_rewards])
    rest = rewards_of(group) - np.array([rewards.sum() for rewards in turn_rewards])
    outcomes = options.outcome_weight * relative(rest, compare)
    return [
        at_tokens(outcome, discounted(rewards, options.gamma) + of_outcome)
        for outcome, rewards, of_outcome in zip(group, normalised, outcomes, strict=True)
    ]


class GigpoOptions(Config):
    """Options of `gigpo`."""

    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount per turn."""
    step_weight: float = Field(default=1.0, ge=0)
    """Weight of the part that compares turns."""
    normalise: bool = True
    """Whether to divide by the standard deviation."""


@register_outcomes("gigpo", GigpoOptions)
def gigpo(groups: Sequence[Sequence[Outcome]], options: GigpoOptions) -> list[list[AdvantageValue]]:
    """Return GRPO over episodes plus GRPO over turns taken in the same state (arXiv 2505.10978).

    The second part compares the discounted returns of turns in the same state across the episodes of a task. A state
    that occurs only once adds nothing.
    """
    return [_gigpo(group, options) for group in groups]


def _gigpo(group: Sequence[Outcome], options: GigpoOptions) -> list[AdvantageValue]:
    compare = grpo if options.normalise else dr_grpo
    episodes = relative(rewards_of(group), compare)
    returns = [discounted(rewards_with_outcome(outcome), options.gamma) for outcome in group]
    steps = [np.zeros_like(part) for part in returns]
    for places in _same_states(group):
        found = relative(np.array([returns[i][k] for i, k in places]), compare)
        for (i, k), value in zip(places, found, strict=True):
            steps[i][k] = value
    return [
        at_tokens(outcome, of_episode + options.step_weight * of_steps)
        for outcome, of_episode, of_steps in zip(group, episodes, steps, strict=True)
    ]


def _same_states(group: Sequence[Outcome]) -> Iterator[list[tuple[int, int]]]:
    """Yield the (episode, turn) pairs of each state."""
    places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for i, outcome in enumerate(group):
        for k, state in enumerate(outcome.states):
            places[state].append((i, k))
    yield from places.values()


def rewards_with_outcome(outcome: Outcome) -> NDArray[np.float64]:
    """Return the reward of each turn, [num_turns]; the last turn includes the rest of the reward."""
    rewards = outcome.turn_rewards
    if len(rewards):
        rewards[-1] += outcome.reward - rewards.sum()
    return rewards


def at_tokens(outcome: Outcome, of_turns: NDArray[np.float64]) -> AdvantageValue:
    """Return the advantage of each sampled token, or one number if all turns have the same."""
    if len(of_turns) == 0:
        return 0.0
    if (of_turns == of_turns[0]).all():
        return float(of_turns[0])
    return np.repeat(of_turns, outcome.turn_lengths).astype(np.float32)


def _split(values: NDArray[np.float64], lengths: Sequence[int]) -> list[NDArray[np.float64]]:
    return np.split(values, np.cumsum(lengths)[:-1])
