"""`StalenessConfig`: how far rollout may run ahead of training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentloop.registry.options import Config


class CutConfig(Config):
    """Early completion of groups: episodes that still run then are aborted and counted."""

    extra_episodes: int = Field(default=0, ge=0)
    """Number of episodes of each group beyond algorithm.group_size; a group is complete with group_size of them."""
    deadline: float | None = Field(default=None, gt=0)
    """Number of seconds after which a group with min_episodes is complete; set both or neither."""
    min_episodes: int | None = Field(default=None, ge=1)
    """Smallest number of episodes of a group after its deadline."""

    @property
    def is_on(self) -> bool:
        """Whether groups may be completed early."""
        return self.extra_episodes > 0 or self.deadline is not None


class StalenessConfig(Config):
    """How old the weights that sampled a token may be when the learner trains on it."""

    mode: Mode = "on_policy"
    """on_policy: play a step, then train on it. stream: play several steps at once, train on each when it is complete.
    stale: keep playing while the learner trains; weights change when no episode runs. partial: weights change during
    episodes, whose tokens then have several versions. See docs/concepts/async.md."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Largest number of steps between the weights that sampled a token and the weights that the token trains. None: 0
    in mode on_policy, 1 in others."""
    window: int | None = Field(default=None, ge=1)
    """Number of oldest groups that a step may train on (algorithm.groups_per_step: first in, first out). None: any
    finished group, as long as that makes no other group too old."""
    when_late: WhenLate = "wait"
    """Handling of a group that would become too old. wait: the learner waits for it, which may leave the engine idle.
    drop: abort the group and play another task, which is faster but biased against long episodes. mask (mode partial):
    play it to its end, and train on it without the tokens that are too old."""
    cut: CutConfig = Field(default_factory=CutConfig)
    allow_uncorrected: bool = False
    """Allow modes stale and partial without learner.corrections."""


Mode = Literal["on_policy", "stream", "stale", "partial"]


WhenLate = Literal["wait", "drop", "mask"]
