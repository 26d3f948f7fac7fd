"""Progress of one run of the demo, and the records for the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from agentloop.api.progress import RunProgress
from agentloop.trainer.schedule.observers import Stage

if TYPE_CHECKING:
    from agentloop.config.run import TrainingConfig
    from agentloop.types.trajectory import Trajectory


@dataclass(slots=True)
class SeedRun:
    """Metrics and held-out episodes of one run."""

    seed: int
    model: str = ""
    """Folder of the model, for its tokenizer."""
    steps: list[Mapping[str, float]] = field(default_factory=list)
    """Metrics of each step, in order; step 0 is the evaluation before training."""
    evaluated: dict[int, dict[str, Trajectory]] = field(default_factory=dict)
    """Step -> id of the held-out task -> its first episode."""
    seconds: float = 0.0

    @property
    def before(self) -> Mapping[str, float]:
        return self.steps[0]

    @property
    def after(self) -> Mapping[str, float]:
        return self.steps[-1]


class DemoProgress(RunProgress):
    """Progress of `agentloop train` that also records the run in `run`."""

    def __init__(self, console: Console, seed: int) -> None:
        super().__init__(console)
        self.run = SeedRun(seed)
        self._is_evaluating = False

    def on_start(self, config: TrainingConfig, folder: Path, done: int) -> None:
        super().on_start(config, folder, done)
        self.run.model = config.model

    def on_stage(self, step: int, stage: Stage) -> None:
        super().on_stage(step, stage)
        self._is_evaluating = stage is Stage.EVAL

    def on_trajectory(self, step: int, trajectory: Trajectory) -> None:
        super().on_trajectory(step, trajectory)
        if self._is_evaluating:
            self.run.evaluated.setdefault(step, {}).setdefault(trajectory.task["id"], trajectory)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        super().on_step(step, metrics)
        self.run.steps.append(metrics)
