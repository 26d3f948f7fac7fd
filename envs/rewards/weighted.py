"""`WeightedSum`: several rewards as one, each with a weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag

from agentloop.envs.rewards.base import Outcome, Reward
from agentloop.envs.rewards.function import RewardFunction
from agentloop.errors import UserError
from agentloop.registry.options import HAS_PATHS, Config, ConfigOptions, ConfigPath

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_COUNTS_ABOVE = 0.5
"""What another term must have given for a term with `only_if` to count."""


class RewardTerm(Config):
    """One reward of several."""

    name: ConfigPath
    """A built-in reward, or 'file.py:name' / 'package.module:name'."""
    weight: float = Field(default=1.0, allow_inf_nan=False)
    options: ConfigOptions = Field(default_factory=dict)
    only_if: str | None = None
    """The label of a term further up: where that gave 0.5 or less, this one is not asked and counts 0."""
    label: str | None = None
    """What it is called in the log and by `only_if`; default: its name, without the place."""

    @property
    def shown(self) -> str:
        return self.label or self.name.rpartition(":")[2]


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


RewardSpec = Annotated[
    Annotated[ConfigPath, Tag("<one>")]
    | Annotated[list[Annotated[RewardTerm, BeforeValidator(_named), HAS_PATHS]], Tag("<several>")],
    Discriminator(lambda value: "<several>" if isinstance(value, list | tuple) else "<one>"),
]
"""What a config may say: the name of a reward, or a list of terms."""


@dataclass(slots=True, frozen=True)
class LoadedTerm:
    reward: RewardFunction
    term: RewardTerm


class WeightedSum(Reward):
    """The sum of rewards times their weights, asked in their order; rewards of turns are weighted in the same way.

    Each term is logged as `reward/<label>`, before its weight, and the numbers that it gives as
    `reward/<label>/<name>`. A term that raises leaves the whole without a reward.
    """

    def __init__(self, terms: Sequence[LoadedTerm]) -> None:
        """Raises `UserError` for labels that are taken or unknown."""
        seen: set[str] = set()
        for each in terms:
            label, gate = each.term.shown, each.term.only_if
            if label in seen:
                raise UserError(f"Two terms of the reward are called {label!r}: give one of them a label of its own.")
            if gate is not None and gate not in seen:
                raise UserError(
                    f"The term {label!r} of the reward counts only if {gate!r}, which is no term further up: "
                    f"{', '.join(sorted(seen)) or 'there is none'}."
                )
            seen.add(label)
        self._terms = tuple(terms)

    async def start(self) -> None:
        for each in self._terms:
            await each.reward.start()

    async def shutdown(self) -> None:
        for each in self._terms:
            await each.reward.shutdown()

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Outcome:
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
        return {**metrics, **given, "reward": total, "turn_rewards": turns}
