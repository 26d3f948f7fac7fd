"""`StalenessConfig`: how far rollout and training may be apart."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentloop.registry.options import Config


class CutConfig(Config):
    """When a group is complete before all of its episodes are. Those that still run are aborted and counted."""

    extra_episodes: int = Field(default=0, ge=0)
    """Episodes of each group beyond algorithm.group_size; the group is complete when group_size of them are."""
    deadline: float | None = Field(default=None, gt=0)
    """Seconds after which a group of min_episodes is complete."""
    min_episodes: int | None = Field(default=None, ge=1)
    """None: algorithm.group_size. A group waits for so many, past its deadline too."""

    @property
    def is_on(self) -> bool:
        return self.extra_episodes > 0 or self.deadline is not None


class StalenessConfig(Config):
    mode: Mode = "on_policy"
    """on_policy: play a step, train it. stream: play several steps at once, train each when it is complete. stale: play
    on while the learner trains; weights change when no episode runs. partial: weights change under running episodes,
    whose tokens then are of several versions. See docs/async.md."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Steps that the weights which sampled a token may be behind those that are trained with it. None: 0 in mode
    on_policy, 1 in others."""
    window: int | None = Field(default=None, ge=1)
    """Train only on the so many oldest groups (algorithm.groups_per_step: first in, first out). None: on any that is
    finished, as long as no other one gets too old by that."""
    when_late: WhenLate = "wait"
    """What becomes of a group that would be too old, once waiting for it leaves the engine idle. wait: the learner
    waits all the same. drop: the group is aborted and another task is played, which is faster and biased against long
    episodes. mask (mode partial): it is played to its end and trained then, without the tokens that are too old."""
    cut: CutConfig = Field(default_factory=CutConfig)
    allow_uncorrected: bool = False
    """Train in the modes stale and partial without learner.corrections."""


Mode = Literal["on_policy", "stream", "stale", "partial"]


WhenLate = Literal["wait", "drop", "mask"]
