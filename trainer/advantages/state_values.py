"""Advantages from mean rewards of states, for tasks whose episodes meet in the same states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agentloop.registry.options import Config
from agentloop.trainer.advantages.base import AdvantageValue, discounted, register_outcomes
from agentloop.trainer.advantages.outcome import Outcome
from agentloop.trainer.advantages.turns import at_tokens, rewards_with_outcome

States = list[tuple[Outcome, int, bytes]]
"""(stream, number of the turn in it, state before the turn) of the turns of one episode, in order."""


class StateTdOptions(Config):
    """Options of `state_td`."""

    lam: float = Field(default=0.0, ge=0, le=1)
    """Weight of later turns. At 1 the advantage is the return minus the value of the state; lower values rely more on
    values of states and have less variance."""
    prior: float = Field(default=0.0, ge=0)
    """Number of turns with the mean return of the step that are added to the turns of each state. Set it above 0 if
    many states occur only once in a step: their own return says little about their value."""


@register_outcomes("state_td", StateTdOptions, compares=False)
def state_td(groups: Sequence[Sequence[Outcome]], options: StateTdOptions) -> list[list[AdvantageValue]]:
    """Return sums of lam^k (r + V' - V) of the k-th later turn, with values of states from the step itself.

    The value V of a state is the mean return of all turns of the step in this state, in all groups, and of `prior`
    turns with the mean return of the step. V' is the value of the next turn's state. This is generalised advantage
    estimation (arXiv 1506.02438) over turns, with a table in place of the critic. If each turn of a player is a
    separate stream, the turns of the player are one sequence.
    """
    episodes = [turns for group in groups for turns in _episodes(group)]
    returns: dict[bytes, list[float]] = defaultdict(list)
    for turns in episodes:
        for outcome, number, state in turns:
            returns[state].append(float(discounted(rewards_with_outcome(outcome), 1.0)[number]))
    values = _values(returns, options.prior)
    advantages: dict[int, list[float]] = defaultdict(list)
    for turns in episodes:
        for (outcome, _, _), value in zip(turns, _advantages(turns, values, options.lam), strict=True):
            advantages[id(outcome)].append(value)
    return [[at_tokens(outcome, np.array(advantages[id(outcome)])) for outcome in group] for group in groups]


def _episodes(group: Sequence[Outcome]) -> list[States]:
    """Return the turns of each episode of a group. The stream of the last turn is the first of its episode."""
    streams: dict[object, list[Outcome]] = defaultdict(list)
    for outcome in group:
        streams[("alone", id(outcome)) if outcome.episode is None else outcome.episode].append(outcome)
    return [
        [(outcome, number, state) for outcome in (*rest, last) for number, state in enumerate(outcome.states)]
        for last, *rest in streams.values()
    ]


def _values(returns: Mapping[bytes, Sequence[float]], prior: float) -> dict[bytes, float]:
    """Return the value of each state from the returns of its turns."""
    mean = float(np.mean([value for found in returns.values() for value in found])) if returns else 0.0
    return {state: (sum(found) + prior * mean) / (len(found) + prior) for state, found in returns.items()}


def _advantages(turns: States, values: Mapping[bytes, float], lam: float) -> NDArray[np.float64]:
    """Return the advantage of each turn of one episode, [num_turns]."""
    own = np.array([values[state] for _, _, state in turns])
    rewards = np.array([_reward(turns, place) for place in range(len(turns))])
    return discounted(rewards + np.append(own[1:], 0.0) - own, lam) if turns else own


def _reward(turns: States, place: int) -> float:
    """Return the reward of a turn; the last turn of the episode includes the rest of the reward."""
    outcome, number, _ = turns[place]
    is_last = place == len(turns) - 1
    return float((rewards_with_outcome(outcome) if is_last else outcome.turn_rewards)[number])
