"""What an advantage is, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentloop.registry import registry
from agentloop.registry.options import Config
from agentloop.registry.registry import NoOptions, Registry
from agentloop.trainer.advantages.outcome import Outcome
from agentloop.types.trajectory import Trajectory

AdvantageValue = float | NDArray[np.float32]
"""Of a whole trajectory, or of each of its sampled tokens, [num_sampled]."""

RewardFn = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Rewards of one group, [n] with n >= 2 and not all equal, to advantages, [n]."""

OutcomeFn = Callable[[Sequence[Sequence[Outcome]], Any], list[list[AdvantageValue]]]
"""(groups, options): all judged trajectories of a step in their groups, to the advantage of each."""

TargetsFn = Callable[[Outcome, Any], NDArray[np.float32]]
"""(outcome, options) to what the critic should have said at each sampled token, [num_sampled]."""


@dataclass(slots=True, frozen=True)
class Advantage:
    """A registered advantage."""

    name: str
    function: OutcomeFn
    options: type[Config]
    compares: bool
    """The episodes of a task with each other: a group needs two of them, and says nothing where all are equal."""
    needs_greedy: bool
    """`Outcome.baseline` must be there."""
    needs_process_rewards: bool
    """`Outcome.process_rewards` must be there."""
    value_targets: TargetsFn | None
    """What the critic learns; where there is something to learn, `Outcome.values` must be there."""


_ADVANTAGES: Registry[Advantage] = Registry("advantage", "algorithm.advantage")


def register_outcomes(
    name: str,
    options: type[Config] = NoOptions,
    *,
    compares: bool = True,
    needs_greedy: bool = False,
    needs_process_rewards: bool = False,
    value_targets: TargetsFn | None = None,
) -> Callable[[OutcomeFn], OutcomeFn]:
    """Decorator: make an advantage known under a name, with the type of its options. A name can be taken once."""

    def add(function: OutcomeFn) -> OutcomeFn:
        needs = compares, needs_greedy, needs_process_rewards
        _ADVANTAGES.add(name, Advantage(name, function, options, *needs, value_targets))
        return function

    return add


def register(name: str) -> Callable[[RewardFn], RewardFn]:
    """Decorator: make a function of the rewards of one group known under a name.

    A group in which fewer than two rewards are left, or in which all are equal, says nothing about which trajectory was
    better: its advantages are 0 and the function is not called.
    """

    def add(function: RewardFn) -> RewardFn:
        def of_groups(groups: Sequence[Sequence[Outcome]], options: NoOptions) -> list[list[AdvantageValue]]:
            return [list(relative(rewards_of(group), function)) for group in groups]

        register_outcomes(name)(of_groups)
        return function

    return add


def get(name: str) -> Advantage:
    """The registered advantage. Raises `UserError` with the nearest name."""
    return _ADVANTAGES.get(name)


def names() -> list[str]:
    return list(_ADVANTAGES)


def parse_options(advantage: Advantage, options: Mapping[str, Any]) -> Config:
    """The options of an advantage, checked. Raises `UserError`."""
    of = f"advantage {advantage.name!r}"
    return registry.parse_options(advantage.options, options, of=of, key="algorithm.advantage_options")


def group_advantages(rewards: Sequence[float | None], name: str = "grpo") -> NDArray[np.float64]:
    """Advantages of one group by its rewards alone, [n]; NaN where there is no reward to judge by.

    Raises `UserError` for an unknown name.
    """
    advantage = get(name)
    known = np.array([reward is not None and np.isfinite(reward) for reward in rewards], dtype=np.bool_)
    group = [Outcome(Trajectory(reward=reward)) for reward, judged in zip(rewards, known, strict=True) if judged]
    (values,) = advantage.function([group], parse_options(advantage, {}))
    advantages = np.full(len(rewards), np.nan)
    advantages[known] = values
    return advantages


def rewards_of(group: Sequence[Outcome]) -> NDArray[np.float64]:
    return np.array([outcome.reward for outcome in group], dtype=np.float64)


def relative(values: NDArray[np.float64], function: RewardFn) -> NDArray[np.float64]:
    """`function`, where there is something to compare; else zeros.

    Equal values are compared as such: their computed standard deviation may be 1e-17, and dividing by it is noise.
    """
    if len(values) < 2 or (values == values[0]).all():
        return np.zeros(len(values))
    return function(values)
