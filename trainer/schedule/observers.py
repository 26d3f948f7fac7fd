"""Observers of a run, such as the progress display of the command line, and timing of its stages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentloop.config.run import TrainingConfig
    from agentloop.types.trajectory import Trajectory


class Stage(StrEnum):
    """A stage of a run. `time/<stage>` has the seconds of each in a step."""

    LOAD = "load"
    """Models and tools start; step 0, or the last step before a resume."""
    ROLLOUT = "rollout"
    TRAIN = "train"
    PUBLISH = "publish"
    """New weights are sent to the engines."""
    SLEEP = "sleep"
    """Engines hand shared GPUs to the learner."""
    WAKE = "wake"
    """The learner hands shared GPUs to the engines."""
    EVAL = "eval"
    SAVE = "save"


class Part(StrEnum):
    """A part of a run that starts in the stage `Stage.LOAD`. `time/load_<part>` has its seconds."""

    WORKERS = "workers"
    """Engines and tools."""
    LEARNER = "learner"


class Observer:
    """Base class: override methods of interest. They are called in the event loop's thread and must not block."""

    def on_start(self, config: TrainingConfig, folder: Path, done: int) -> None:
        """Handle the start of a run that already has `done` steps."""

    def on_stage(self, step: int, stage: Stage) -> None:
        """Handle the start of a stage."""

    def on_part(self, part: Part, seconds: float | None) -> None:
        """Handle that a part starts (`seconds` is None), and that it is ready after `seconds`."""

    def on_trajectory(self, step: int, trajectory: Trajectory) -> None:
        """Handle the end of an episode in a rollout or an evaluation."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Handle the end of a step with its line in metrics.jsonl. Step 0 is the evaluation before training."""


class StageTimer:
    """Reports stages to an observer, and sums the seconds of each stage."""

    def __init__(self, observer: Observer, step: int = 0) -> None:
        self.step = step
        """Number of the current step."""
        self.observer = observer
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Time a stage of the current step."""
        self.observer.on_stage(self.step, stage)
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            yield
        finally:
            self.add(stage, clock() - started)

    @contextmanager
    def part(self, part: Part) -> Iterator[None]:
        """Time the start of a part."""
        self.observer.on_part(part, None)
        clock = asyncio.get_running_loop().time
        started = clock()
        yield
        seconds = clock() - started
        self.add(f"load_{part}", seconds)
        self.observer.on_part(part, seconds)

    def add(self, name: str, seconds: float) -> None:
        """Add to `time/<name>`."""
        key = f"time/{name}"
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds of each stage since the last call; a checkpoint counts in the step after it."""
        seconds, self._seconds = self._seconds, {}
        return seconds
