"""Who watches a run: the command line's progress display, a demo, a test."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentloop.config.run import RunConfig
    from agentloop.types.trajectory import Trajectory


class Stage(StrEnum):
    """What a run is busy with. `time/<stage>` has the seconds of each in a step."""

    LOAD = "load"
    """Models and tools start; step 0, or the one that a resumed run goes on from."""
    ROLLOUT = "rollout"
    TRAIN = "train"
    PUBLISH = "publish"
    """The new weights go to the engine."""
    SLEEP = "sleep"
    """Engines leave shared GPUs to the learner."""
    WAKE = "wake"
    """The learner leaves them to the engines."""
    EVAL = "eval"
    SAVE = "save"


class Observer:
    """Base class: override what you want to see. All calls come from the event loop's thread; do not block in them."""

    def on_start(self, config: RunConfig, folder: Path, done: int) -> None:
        """The run begins; `done` steps of it were made before."""

    def on_stage(self, step: int, stage: Stage) -> None:
        """A stage begins."""

    def on_trajectory(self, step: int, trajectory: Trajectory) -> None:
        """An episode ended, of a rollout or an evaluation."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done; `metrics` is its line of metrics.jsonl. Step 0 is the evaluation before training."""
