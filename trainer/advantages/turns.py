"""One advantage a turn: credit for episodes in which the environment rewards turns, discounted over turns, never over
tokens, since what a tool answers is not the model's doing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agentloop.registry.options import Config
from agentloop.trainer.advantages.base import AdvantageValue, register_outcomes, relative, rewards_of
from agentloop.trainer.advantages.discounting import discounted
from agentloop.trainer.advantages.outcome import Outcome
from agentloop.trainer.advantages.relative import dr_grpo, grpo


class TurnGrpoOptions(Config):
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount a turn."""
    outcome_weight: float = Field(default=1.0, ge=0)
    """Of the part that compares the rest of the reward, the same for all turns of an episode."""
    normalise: bool = True
    """Divide by the standard deviation."""


@register_outcomes("turn_grpo", TurnGrpoOptions)
def turn_grpo(groups: Sequence[Sequence[Outcome]], options: TurnGrpoOptions) -> list[list[AdvantageValue]]:
    """Rewards of turns are normalised over all turns of the group, and a turn has the discounted sum of those from it
    on; the rest of the reward is compared as in GRPO.

    DeepSeekMath's GRPO with process supervision (arXiv 2402.03300, 4.1.3), turns as the steps; outcome and turn parts
    as in MT-GRPO (arXiv 2505.11821).
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
        _at_tokens(outcome, discounted(rewards, options.gamma) + of_outcome)
        for outcome, rewards, of_outcome in zip(group, normalised, outcomes, strict=True)
    ]


class GigpoOptions(Config):
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount a turn."""
    step_weight: float = Field(default=1.0, ge=0)
    """Of the part that compares turns."""
    normalise: bool = True
    """Divide by the standard deviation."""


@register_outcomes("gigpo", GigpoOptions)
def gigpo(groups: Sequence[Sequence[Outcome]], options: GigpoOptions) -> list[list[AdvantageValue]]:
    """GRPO over episodes, plus the same over turns that were taken in the same state: their discounted returns are
    compared across the episodes of a task. A state that was met once adds nothing. arXiv 2505.10978."""
    return [_gigpo(group, options) for group in groups]


def _gigpo(group: Sequence[Outcome], options: GigpoOptions) -> list[AdvantageValue]:
    compare = grpo if options.normalise else dr_grpo
    episodes = relative(rewards_of(group), compare)
    returns = [discounted(_rewards_with_outcome(outcome), options.gamma) for outcome in group]
    steps = [np.zeros_like(part) for part in returns]
    for places in _same_states(group):
        found = relative(np.array([returns[i][k] for i, k in places]), compare)
        for (i, k), value in zip(places, found, strict=True):
            steps[i][k] = value
    return [
        _at_tokens(outcome, of_episode + options.step_weight * of_steps)
        for outcome, of_episode, of_steps in zip(group, episodes, steps, strict=True)
    ]


def _same_states(group: Sequence[Outcome]) -> Iterator[list[tuple[int, int]]]:
    """The (episode, turn)s of each state."""
    places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for i, outcome in enumerate(group):
        for k, state in enumerate(outcome.states):
            places[state].append((i, k))
    yield from places.values()


def _rewards_with_outcome(outcome: Outcome) -> NDArray[np.float64]:
    """The reward of each turn, [num_turns]; what is not of a turn is of the last."""
    rewards = outcome.turn_rewards
    if len(rewards):
        rewards[-1] += outcome.reward - rewards.sum()
    return rewards


def _at_tokens(outcome: Outcome, of_turns: NDArray[np.float64]) -> AdvantageValue:
    if len(of_turns) == 0:
        return 0.0
    if (of_turns == of_turns[0]).all():
        return float(of_turns[0])
    return np.repeat(of_turns, outcome.turn_lengths).astype(np.float32)


def _split(values: NDArray[np.float64], lengths: Sequence[int]) -> list[NDArray[np.float64]]:
    return np.split(values, np.cumsum(lengths)[:-1])
