"""`RunConfig`: everything that one training run is. `agentloop.trainer.run.checks` says which ones cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from agentloop.config.algorithm import AlgorithmConfig
from agentloop.config.auxiliary_model import CriticConfig, ProcessRewardConfig
from agentloop.config.data import DataConfig
from agentloop.config.env import EnvConfig
from agentloop.config.learner import LearnerConfig
from agentloop.config.loggers import LoggerConfig
from agentloop.config.placement import PlacementConfig
from agentloop.config.profiler import ProfilerConfig
from agentloop.config.rendering import RenderingConfig
from agentloop.config.rollout import EngineConfig, EvalConfig, LimitsConfig, SamplingConfig
from agentloop.config.staleness import StalenessConfig
from agentloop.config.workers import WorkersConfig
from agentloop.registry.options import HAS_PATHS, Config, ConfigPath, named


class RunSettings(Config):
    folder: str | None = None
    """Where everything is written; a folder with a checkpoint is gone on with. Default: a new one below runs/."""
    steps: int = Field(default=100, ge=1)
    epochs: float | None = Field(default=None, gt=0)
    """Times that the training tasks are gone through, in place of `steps`."""
    seed: int = 0
    save_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step is always saved."""
    keep_last: int = Field(default=2, ge=1)
    """Checkpoints that are kept."""
    save_trajectories: int | None = Field(default=None, ge=0)
    """Trajectories of each step that are written; None writes all."""
    max_failure_fraction: float = Field(default=0.5, ge=0, le=1)
    """Stop when more of a step's episodes failed."""
    loggers: tuple[Annotated[LoggerConfig, BeforeValidator(named), HAS_PATHS], ...] = (
        LoggerConfig(name="tensorboard"),
    )
    """Beside metrics.jsonl, which is always written; a plain string is the name of a logger."""


class RunConfig(Config):
    """One training run."""

    model: ConfigPath
    """Hugging Face name, or a folder ('./model')."""
    data: DataConfig
    env: EnvConfig
    rendering: RenderingConfig = Field(default_factory=RenderingConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    workers: WorkersConfig = Field(default_factory=WorkersConfig)
    placement: PlacementConfig = Field(default_factory=PlacementConfig)
    algorithm: AlgorithmConfig = Field(default_factory=AlgorithmConfig)
    staleness: StalenessConfig = Field(default_factory=StalenessConfig)
    learner: LearnerConfig
    """Its model, temperature and seed are those of the run and need not be said again."""
    critic: CriticConfig = Field(default_factory=CriticConfig)
    """Of the advantage `gae`; otherwise nothing of it is loaded."""
    process_reward: ProcessRewardConfig = Field(default_factory=ProcessRewardConfig)
    """Of the advantage `prime`; otherwise nothing of it is loaded."""
    eval: EvalConfig = Field(default_factory=EvalConfig)
    run: RunSettings = Field(default_factory=RunSettings)
    profiler: ProfilerConfig = Field(default_factory=ProfilerConfig)

    @model_validator(mode="before")
    @classmethod
    def _share_with_learner(cls, data: Any) -> Any:
        """Give the learner what it has in common with other sections, and leave errors in those to their checks."""
        if not isinstance(data, Mapping) or not isinstance(data.get("learner", {}), Mapping):
            return data
        shared = {
            "model": data.get("model", ""),
            "temperature": _get(data, "sampling", "temperature") or None,
            "seed": _get(data, "run", "seed"),
            "total_updates": _total_updates(data),
        }
        known = {key: value for key, value in shared.items() if value is not None}
        return {**data, "learner": known | dict(data.get("learner", {}))}

    def of_length(self, num_tasks: int) -> RunConfig:
        """With the steps that `run.epochs` comes to for so many training tasks; as it is where that is not set."""
        if self.run.epochs is None:
            return self
        steps = max(int(num_tasks * self.run.epochs / self.algorithm.groups_per_step), 1)
        updates = None if self.learner.lr_schedule == "constant" else steps * self.learner.mini_batches
        return self.replace(
            run=self.run.replace(steps=steps, epochs=None),
            learner=self.learner.replace(total_updates=self.learner.total_updates or updates),
        )

    @property
    def trajectories_per_step(self) -> int:
        return self.algorithm.groups_per_step * self.algorithm.group_size


def _get(data: Mapping[str, Any], section: str, key: str) -> Any:
    value = data.get(section)
    return value.get(key) if isinstance(value, Mapping) else None


def _total_updates(data: Mapping[str, Any]) -> int | None:
    """Length of a learning-rate schedule that ends with the run; that of epochs is not known yet."""
    if _get(data, "learner", "lr_schedule") in (None, "constant") or _get(data, "run", "epochs") is not None:
        return None
    steps = _get(data, "run", "steps") or RunSettings.model_fields["steps"].default
    mini_batches = _get(data, "learner", "mini_batches") or 1
    return steps * mini_batches if isinstance(steps, int) and isinstance(mini_batches, int) else None
