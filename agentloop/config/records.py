"""`LoggerConfig` and `ProfilerConfig`: records of a run in addition to metrics.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from agentloop.registry.options import Config, ConfigOptions, ConfigPath
from agentloop.registry.registry import Registry

LOGGERS: Registry[Any] = Registry(
    "logger",
    "run.loggers",
    {
        "mlflow": "agentloop.trainer.run.loggers.mlflow:MlflowLogger",
        "tensorboard": "agentloop.trainer.run.loggers.tensorboard:TensorBoardLogger",
        "wandb": "agentloop.trainer.run.loggers.wandb:WandbLogger",
    },
)
"""Logger classes, imported on first use."""


class LoggerConfig(Config):
    """A logger and its options."""

    name: Annotated[ConfigPath, AfterValidator(LOGGERS.check)]
    """`tensorboard`, `wandb`, `mlflow`, or one of your own, 'file.py:Class' / 'package.module:Class'."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of its constructor, such as {project: my-agents} for wandb."""


ProfilerTool = Literal["torch", "nsys"]


class RecordingConfig(Config):
    """The part of `ProfilerConfig` that the processes of the learner need."""

    folder: str
    """Folder of the run."""
    steps: tuple[int, ...] = ()
    ranks: tuple[int, ...] | None = (0,)
    tool: ProfilerTool = "torch"
    discrete: bool = False
    spans: bool = False


class ProfilerConfig(Config):
    """Profiles and timelines, in addition to the seconds in metrics.jsonl."""

    timeline: bool = False
    """Write stages, episodes and the phases of every learner rank as a trace for ui.perfetto.dev: timeline-STEP.json in
    the folder of the run."""
    steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Steps in which the learner is profiled."""
    ranks: tuple[Annotated[int, Field(ge=0)], ...] | None = (0,)
    """Ranks of the learner that are profiled; None: all."""
    tool: ProfilerTool = "torch"
    """torch: profiles/learner-rankR-stepN.json.gz in the folder of the run, for ui.perfetto.dev. nsys: only mark the
    start and end of a profile; start the run as `nsys profile --capture-range=cudaProfilerApi
    --capture-range-end=repeat ...`."""
    discrete: bool = False
    """Write one profile per step that covers the learner only. Otherwise consecutive steps share one profile, which
    includes everything that the process does between them."""

    def of_learner(self, folder: Path) -> RecordingConfig | None:
        """Return what the processes of the learner record, or None if they record nothing."""
        if not self.timeline and not self.steps:
            return None
        return RecordingConfig(
            folder=str(folder.absolute()),
            steps=self.steps,
            ranks=self.ranks,
            tool=self.tool,
            discrete=self.discrete,
            spans=self.timeline,
        )
