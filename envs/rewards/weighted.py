"""`WeightedSum`: combines several rewards, each with a weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag

from agentloop.envs.rewards.base import OF_THE_RUN, Reward
from agentloop.envs.rewards.function import Judgement, RewardFunction
from agentloop.errors import UserError
from agentloop.registry.options import HAS_PATHS, Config, ConfigOptions, ConfigPath, named

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_COUNTS_ABOVE = 0.5
"""Reward that the term named by `only_if` must exceed."""


class RewardTerm(Config):
    """One term of a weighted sum."""

    name: ConfigPath
    """Built-in reward, or 'file.py:name' / 'package.module:name'."""
    weight: float = 1.0
    """Factor of the reward in the sum."""
    options: ConfigOptions = Field(default_factory=dict)
    """Keyword arguments of the reward."""
    only_if: str | None = None
    """Label of an earlier term. If its reward is at most 0.5, this term is not computed and counts as 0."""
    label: str | None = None
    """Name in the log and for `only_if`. Default: `name` without the location."""

    @property
    def shown(self) -> str:
        """The label, or the name without the location."""
        return self.label or self.name.rpartition(":")[2]


RewardSpec = Annotated[
    Annotated[ConfigPath, Tag("<one>")]
    | Annotated[list[Annotated[RewardTerm, BeforeValidator(named), HAS_PATHS]], Tag("<several>")],
    Discriminator(lambda value: "<several>" if isinstance(value, list | tuple) else "<one>"),
]
"""Value of a config: the name of a reward, or a list of terms."""


@dataclass(slots=True, frozen=True)
class LoadedTerm:
    """Term with its loaded reward."""

    reward: RewardFunction
    term: RewardTerm


class WeightedSum(Reward):
    """Weighted sum of rewards, computed in order. Rewards of turns get the same weights.

    The log has each term without its weight as `reward/<label>`, and its metrics as `reward/<label>/<name>`. If a term
    raises, the trajectory has no reward.
    """

    def __init__(self, terms: Sequence[LoadedTerm]) -> None:
        """Check the labels. Raises `UserError` for duplicate, reserved and unknown ones."""
        seen: set[str] = set()
        for each in terms:
            label, gate = each.term.shown, each.term.only_if
            if label in seen:
                raise UserError(f"Two terms of the reward have the label {label!r}: give one of them another label.")
            if label in OF_THE_RUN:
                raise UserError(
                    f"A term of the reward is named {label!r}, but reward/{label} in the log is the run's own: "
                    "give the term another label."
                )
            if gate is not None and gate not in seen:
                raise UserError(
                    f"only_if of the reward term {label!r} must name an earlier term, got {gate!r}. Earlier terms: "
                    f"{', '.join(sorted(seen)) or 'none'}."
                )
            seen.add(label)
        self._terms = tuple(terms)

    async def start(self) -> None:
        for each in self._terms:
            await each.reward.start()

    async def shutdown(self) -> None:
        for each in self._terms:
            await each.reward.shutdown()

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Judgement:  # type: ignore[override]
        given: dict[str, float] = {}
        metrics: dict[str, float] = {}
        turns = [0.0] * len(trajectory.turn_rewards)
        total = 0.0
        for each in self._terms:
            label, weight, gate = each.term.shown, each.term.weight, each.term.only_if
            if gate is not None and given[gate] <= _COUNTS_ABOVE:
                given[label] = 0.0
                continue
            judgement = await each.reward.judge(trajectory, task)
            given[label] = judgement.reward
            total += weight * judgement.reward
            for turn, value in enumerate(judgement.turn_rewards):
                turns[turn] += weight * value
            metrics |= {f"{label}/{key}": value for key, value in judgement.metrics.items()}
        return Judgement(total, turns, metrics | given)  # and no mapping, in which a term may not be named `reward`
