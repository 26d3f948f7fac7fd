"""Registry of advantages, and functions that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentloop.errors import WrongTypeError, blaming, named, shown
from agentloop.registry import options as registry_options
from agentloop.registry.options import Config, NoOptions
from agentloop.registry.registry import Registry, registering
from agentloop.trainer.advantages.outcome import Outcome
from agentloop.types.trajectory import Trajectory

AdvantageValue = float | NDArray[np.float32]
"""One advantage for the trajectory, or one per sampled token, [num_sampled]."""

RewardFn = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""rewards of one group -> advantages, both [n]; n >= 2 and the rewards are not all equal."""

OutcomeFn = Callable[[Sequence[Sequence[Outcome]], Any], list[list[AdvantageValue]]]
"""(groups, options) -> advantage of each outcome; groups have all judged trajectories of a step."""

TargetsFn = Callable[[Outcome, Any], NDArray[np.float32]]
"""(outcome, options) -> the critic's target at each sampled token, [num_sampled]."""


@dataclass(slots=True, frozen=True)
class Advantage:
    """A registered advantage."""

    name: str
    function: OutcomeFn
    options: type[Config]
    compares: bool
    """Whether it compares the episodes of a task. If so, a group needs two, and has no gradient if their rewards are
    equal."""
    needs_greedy: bool
    """Whether it needs `Outcome.baseline`."""
    needs_process_rewards: bool
    """Whether it needs `Outcome.process_rewards`."""
    value_targets: TargetsFn | None
    """Targets of the critic; if set, the advantage needs `Outcome.values`."""


_ADVANTAGES: Registry[Advantage] = Registry("advantage", "algorithm.advantage", own="registration")


def register_outcomes(
    name: str,
    options: type[Config] = NoOptions,
    *,
    compares: bool = True,
    needs_greedy: bool = False,
    needs_process_rewards: bool = False,
    value_targets: TargetsFn | None = None,
) -> Callable[[OutcomeFn], OutcomeFn]:
    """Return a decorator that registers an advantage under a new name, with the type of its options."""
    needs = compares, needs_greedy, needs_process_rewards
    return registering(_ADVANTAGES, name, lambda function: Advantage(name, function, options, *needs, value_targets))


def register(name: str) -> Callable[[RewardFn], RewardFn]:
    """Return a decorator that registers a function of the rewards of one group under a new name.

    A group with fewer than two rewards, or with equal rewards, does not show which trajectory was better. Its
    advantages are 0, and the function is not called.
    """

    def add(function: RewardFn) -> RewardFn:
        def checked(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
            found: Any = function(rewards)
            if np.shape(found) != rewards.shape:
                raise WrongTypeError(
                    f"{named(function)} returned {shown(found)} for {len(rewards)} rewards. Return one number for each."
                )
            return np.asarray(found, np.float64)

        def of_groups(groups: Sequence[Sequence[Outcome]], options: NoOptions) -> list[list[AdvantageValue]]:
            return [list(relative(rewards_of(group), checked)) for group in groups]

        of_groups.__wrapped__ = function  # type: ignore[attr-defined]  # errors name it
        register_outcomes(name)(of_groups)
        return function

    return add


def evaluate(advantage: Advantage, groups: Sequence[Sequence[Outcome]], options: Config) -> list[list[AdvantageValue]]:
    """Return the advantage of each outcome.

    Raises `UserError` if the user's function raised, and `WrongTypeError` if it returned something else.
    """
    with blaming(f"The advantage {advantage.name!r}, {named(advantage.function)}, failed"):
        found = advantage.function(groups, options)
    if not isinstance(found, list) or list(map(len, found)) != list(map(len, groups)):
        raise WrongTypeError(
            f"{named(advantage.function)} returned {shown(found)} for {len(groups)} groups. Return a list for each "
            "group, with an advantage for each outcome, in a list."
        )
    for group, values in zip(groups, found, strict=True):
        for outcome, value in zip(group, values, strict=True):
            if np.shape(value) not in ((), (outcome.num_sampled,)):
                raise WrongTypeError(
                    f"{named(advantage.function)} returned an advantage of shape {list(np.shape(value))} for an "
                    f"outcome with {outcome.num_sampled} sampled tokens. Return one number, or an array with one for "
                    "each token."
                )
            if not np.isfinite(value).all():
                raise WrongTypeError(
                    f"{named(advantage.function)} returned an advantage that is not finite for an outcome with the "
                    f"reward {outcome.reward}. Return finite numbers."
                )
    return found


def get(name: str) -> Advantage:
    """Return the registered advantage. Raises `UserError` with the nearest name for unknown names."""
    return _ADVANTAGES.get(name)


def names() -> list[str]:
    """Return the names of all registered advantages."""
    return sorted(_ADVANTAGES)


def parse_options(advantage: Advantage, options: Mapping[str, Any]) -> Config:
    """Validate the options of an advantage. Raises `UserError`."""
    of = f"advantage {advantage.name!r}"
    return registry_options.parse_options(advantage.options, options, of=of, key="algorithm.advantage_options")


def group_advantages(rewards: Sequence[float | None], name: str = "grpo") -> NDArray[np.float64]:
    """Return the advantages of one group from its rewards alone, [n]; NaN if a reward is None or not finite.

    Raises `UserError` for an unknown name.
    """
    advantage = get(name)
    known = np.array([reward is not None and np.isfinite(reward) for reward in rewards], dtype=np.bool_)
    group = [Outcome(Trajectory(reward=reward)) for reward, judged in zip(rewards, known, strict=True) if judged]
    (values,) = evaluate(advantage, [group], parse_options(advantage, {}))
    advantages = np.full(len(rewards), np.nan)
    advantages[known] = values
    return advantages


def rewards_of(group: Sequence[Outcome]) -> NDArray[np.float64]:
    """Return the rewards of a group, [n]."""
    return np.array([outcome.reward for outcome in group], dtype=np.float64)


def relative(values: NDArray[np.float64], function: RewardFn) -> NDArray[np.float64]:
    """Return `function(values)`, or zeros if there are fewer than two values or all are equal.

    The values are compared directly because rounding can make the standard deviation of equal values 1e-17, and
    dividing by that yields noise.
    """
    if len(values) < 2 or (values == values[0]).all():
        return np.zeros(len(values))
    return function(values)


def discounted(values: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """Return discounted sums, [n]: at each index i the sum over d >= 0 of gamma^d * values[i + d]."""
    backwards = values[::-1]
    if gamma == 1.0:
        return np.cumsum(backwards)[::-1]
    # A loop over a list: looping over millions of array elements would take seconds.
    sums = accumulate(backwards.tolist(), lambda later, value: value + gamma * later)
    return np.fromiter(sums, np.float64, len(values))[::-1]
