"""What is asked of a rollout worker, and what it answers: one request, one group of trajectories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentloop.types.trajectory import Trajectory


@dataclass(slots=True)
class Group:
    """The trajectories of one task, in the order of their seeds."""

    group_id: str
    trajectories: list[Trajectory] = field(default_factory=list)


@dataclass(slots=True, frozen=True, kw_only=True)
class RolloutRequest:
    """A group to be played. Plain data: every worker has the datasets and makes the environments itself."""

    group_id: str
    """Unique among the groups in flight."""
    row: int
    """Index of the task in its dataset."""
    n: int
    seed: int
    """Episode k of the group runs with seed * n + k."""
    split: Literal["train", "eval"] = "train"
    temperature: float | None = None
    """None: the run's."""
    top_p: float | None = None
    """As `temperature`."""
    places: tuple[int, ...] | None = None
    """Which of the n episodes are played; None: all. Of an order that is given again after a failure, those that did
    not end."""
