"""`MixedSampler`: draws tasks of several sources by weight, skips tasks that teach nothing, and raises levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentloop.envs.sampler import TaskSampler
from agentloop.errors import UserError

_NEW_SHARE = 0.5
"""Share of a new group in the moving average of its task."""
_AGAIN_AFTER = 4
"""Number of times that a task outside the bounds is skipped before it is measured again."""
_GROUPS_OF_A_LEVEL = 32
"""Number of last groups whose mean reward decides whether the next level begins."""


@dataclass(slots=True, frozen=True)
class Source:
    """One of several datasets. Tasks are indices into the rows of all sources."""

    name: str
    weight: float
    levels: Sequence[range]
    """Tasks of each level, from easy to hard; one level if the source has no curriculum."""
    keep: tuple[float, float] | None = None
    """Bounds of the moving average of a task's reward."""
    raise_at: float = 0.8
    """Mean reward at which the next level begins."""


@dataclass(slots=True)
class _Rate:
    """Moving average of the reward of a task, and how often the task was skipped since it was played."""

    value: float
    passed_over: int = 0


@dataclass(slots=True)
class _Drawing:
    """The position of one source."""

    source: Source
    samplers: list[TaskSampler]
    num_drawn: int = 0
    level: int = 0
    rewards: list[float] = field(default_factory=list)
    """Rewards of the last groups of this level."""
    rates: dict[int, _Rate] = field(default_factory=dict)

    def draw(self) -> int:
        self.num_drawn += 1
        tasks, sampler = self.source.levels[self.level], self.samplers[self.level]
        while True:
            (place,) = sampler.take(1)
            if not self._passes_over(tasks[place]):
                return tasks[place]

    def is_kept(self, task: int) -> bool:
        """Return whether the reward of a task is within the bounds or unknown."""
        keep, rate = self.source.keep, self.rates.get(task)
        return keep is None or rate is None or keep[0] <= rate.value <= keep[1]

    def record(self, task: int, reward: float) -> None:
        """Note the mean reward of a group."""
        if self.source.keep is not None:
            rate = self.rates.get(task)
            self.rates[task] = _Rate(reward if rate is None else rate.value + _NEW_SHARE * (reward - rate.value))
        if task in self.source.levels[self.level]:  # a late group of the previous level says nothing about this one
            self.rewards = [*self.rewards, reward][-_GROUPS_OF_A_LEVEL:]
            is_high = sum(self.rewards) >= self.source.raise_at * _GROUPS_OF_A_LEVEL
            if len(self.rewards) == _GROUPS_OF_A_LEVEL and is_high and self.level + 1 < len(self.source.levels):
                self.level += 1
                self.rewards = []

    def _passes_over(self, task: int) -> bool:
        if self.is_kept(task):
            return False
        rate = self.rates[task]
        rate.passed_over = (rate.passed_over + 1) % (_AGAIN_AFTER + 1)
        return rate.passed_over > 0


class MixedSampler:
    """Endless sequence of tasks of several sources.

    The share of each source follows its weight, and no source is ever more than one task ahead. A source with `keep`
    skips tasks whose moving average of the reward is outside the bounds, except every fifth time. A source with levels
    moves to the next level when the mean reward of its last 32 groups reaches `raise_at`.
    """

    def __init__(self, sources: Sequence[Source], *, seed: int = 0, shuffle: bool = True) -> None:
        self._drawings = [
            _Drawing(
                source,
                [TaskSampler(len(tasks), seed=seed + 1000 * number, shuffle=shuffle) for tasks in source.levels],
            )
            for number, source in enumerate(sources)
        ]

    @property
    def epoch(self) -> int:
        """Number of complete passes over the source and level with the fewest passes."""
        return min(drawing.samplers[drawing.level].epoch for drawing in self._drawings)

    def take(self, num: int) -> list[int]:
        """Return the next `num` tasks."""
        return [self._next().draw() for _ in range(num)]

    def record(self, task: int, rewards: Sequence[float]) -> None:
        """Note the rewards of a finished group. A group without rewards is ignored."""
        if rewards:
            self._drawing_of(task).record(task, sum(rewards) / len(rewards))

    def source_of(self, task: int) -> str:
        """Return the name of the source of a task."""
        return self._drawing_of(task).source.name

    def metrics(self) -> dict[str, float]:
        """Return the level of each source that has several, and the share of measured tasks within its bounds."""
        values: dict[str, float] = {}
        for drawing in self._drawings:
            name, rates = drawing.source.name, drawing.rates
            if len(drawing.source.levels) > 1:
                values[f"source/{name}/level"] = float(drawing.level)
            if rates:
                values[f"source/{name}/kept"] = sum(map(drawing.is_kept, rates)) / len(rates)
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the recorded rewards."""
        return {
            "sources": [
                {
                    "name": drawing.source.name,
                    "samplers": [sampler.state_dict() for sampler in drawing.samplers],
                    "num_drawn": drawing.num_drawn,
                    "level": drawing.level,
                    "rewards": drawing.rewards,
                    "rates": [[task, rate.value, rate.passed_over] for task, rate in drawing.rates.items()],
                }
                for drawing in self._drawings
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Raises `UserError` if the sources have changed."""
        saved = state.get("sources", ())
        before = [(each["name"], len(each["samplers"])) for each in saved]
        today = [(each.source.name, len(each.samplers)) for each in self._drawings]
        if before != today:
            raise UserError(
                f"The sources of data.train and their levels were {before} when the checkpoint was written, but now "
                f"they are {today}. Restore them, or start in a new run folder."
            )
        for drawing, each in zip(self._drawings, saved, strict=True):
            for sampler, position in zip(drawing.samplers, each["samplers"], strict=True):
                sampler.load_state_dict(position)
            drawing.num_drawn, drawing.level = each["num_drawn"], each["level"]
            drawing.rewards = list(each["rewards"])
            drawing.rates = {task: _Rate(value, passed_over) for task, value, passed_over in each["rates"]}

    def _next(self) -> _Drawing:
        """Return the source that is furthest behind its share, and the first one if several are equal."""
        total = sum(each.num_drawn for each in self._drawings) + 1
        weights = sum(each.source.weight for each in self._drawings)
        return max(self._drawings, key=lambda each: total * each.source.weight / weights - each.num_drawn)

    def _drawing_of(self, task: int) -> _Drawing:
        return next(each for each in self._drawings if any(task in tasks for tasks in each.source.levels))
