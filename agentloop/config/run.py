"""`RunConfig`: a training run as the user writes it. `agentloop.trainer.run.checks` rejects runs that cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from agentloop.config.algorithm import AlgorithmConfig
from agentloop.config.auxiliary_model import CriticConfig, ProcessRewardConfig
from agentloop.config.learner import LearnerConfig
from agentloop.config.placement import PlacementConfig
from agentloop.config.records import LoggerConfig, ProfilerConfig
from agentloop.config.rendering import RenderingConfig
from agentloop.config.rollout import EngineConfig, EvalConfig, LimitsConfig, SamplingConfig
from agentloop.config.staleness import StalenessConfig
from agentloop.config.tasks import DataConfig, EnvConfig
from agentloop.config.workers import WorkersConfig
from agentloop.registry.options import HAS_PATHS, Config, ConfigPath, named


class RunSettings(Config):
    """Length, folder and loggers of a run."""

    folder: str | None = None
    """Folder of the run; resumes if it has a checkpoint. Default: a new folder below runs/."""
    steps: int = Field(default=100, ge=1)
    """Number of steps; each trains once on `algorithm.groups_per_step` groups."""
    epochs: float | None = Field(default=None, gt=0)
    """Number of passes over the training tasks; set this or `steps`, not both."""
    seed: int = 0
    """Seed of the order of tasks, of sampling and of training."""
    save_every: int = Field(default=10, ge=1)
    """Number of steps between checkpoints; the last step is always saved."""
    keep_last: int = Field(default=2, ge=1)
    """Number of checkpoints that are kept."""
    save_trajectories: int | None = Field(default=None, ge=0)
    """Number of trajectories of each step that are written; None writes all."""
    max_failure_fraction: float = Field(default=0.5, ge=0, le=1)
    """Stop if a larger part of the episodes of a step failed."""
    loggers: tuple[Annotated[LoggerConfig, BeforeValidator(named), HAS_PATHS], ...] = (
        LoggerConfig(name="tensorboard"),
    )
    """Loggers in addition to metrics.jsonl, which is always written; a plain string is a name."""


class RunConfig(Config):
    """One training run."""

    model: ConfigPath
    """Name on the Hugging Face hub, or a folder ('./model')."""
    base_model: ConfigPath | None = None
    """Model from which `model` is made by an earlier stage. `plan` and `--dry-run` use it until `model` is there."""
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
    learner: LearnerConfig = Field(default_factory=LearnerConfig)
    """Its model, temperature and seed are those of the run and can be left out."""
    critic: CriticConfig = Field(default_factory=CriticConfig)
    """The critic of the advantage `gae`; other advantages do not load it."""
    process_reward: ProcessRewardConfig = Field(default_factory=ProcessRewardConfig)
    """The process reward model of the advantage `prime`; other advantages do not load it."""
    eval: EvalConfig = Field(default_factory=EvalConfig)
    run: RunSettings = Field(default_factory=RunSettings)
    profiler: ProfilerConfig = Field(default_factory=ProfilerConfig)

    @model_validator(mode="before")
    @classmethod
    def _share_with_learner(cls, data: Any) -> Any:
        """Copy settings that the learner shares with other sections; errors in those are left to their own checks."""
        if isinstance(data, Mapping):
            data = {key: _keys_set(value) if isinstance(value, Config) else value for key, value in data.items()}
        if not isinstance(data, Mapping) or not isinstance(data.get("learner", {}), Mapping):
            return data
        return {**data, "learner": _shared(data) | dict(data.get("learner", {}))}

    def as_written(self) -> dict[str, Any]:
        """Return the keys that were set, as plain data, without those that the learner copies from other sections."""
        data = self.model_dump(mode="json", exclude_unset=True)
        shared = _shared(data)
        own = {key: value for key, value in data["learner"].items() if value != shared.get(key)}
        return {**data, "learner": own}

    def max_tokens(self, context: int | None = None) -> int:
        """Return the most tokens of an episode of a model with this context; None: the context is not known yet.

        This is `limits.max_tokens` if it is set, else as much as both the context and `learner.token_budget` allow.
        """
        budget = self.learner.token_budget
        return self.limits.max_tokens or min(budget, context or budget)

    @property
    def trajectories_per_step(self) -> int:
        """Number of episodes of a step."""
        return self.algorithm.groups_per_step * self.algorithm.group_size


def _keys_set(section: Config) -> dict[str, Any]:
    return {name: getattr(section, name) for name in section.model_fields_set}


def _shared(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the learner copies from other sections of `data`."""
    shared = {
        "model": data.get("model", ""),
        "temperature": _get(data, "sampling", "temperature") or None,
        "seed": _get(data, "run", "seed"),
        "total_updates": _total_updates(data),
    }
    return {key: value for key, value in shared.items() if value is not None}


def _get(data: Mapping[str, Any], section: str, key: str) -> Any:
    value = data.get(section)
    return value.get(key) if isinstance(value, Mapping) else None


def _total_updates(data: Mapping[str, Any]) -> int | None:
    """Return the length of a learning-rate schedule that ends with the run; None with epochs, which need the data."""
    if _get(data, "learner", "lr_schedule") in (None, "constant") or _get(data, "run", "epochs") is not None:
        return None
    steps = _get(data, "run", "steps") or RunSettings.model_fields["steps"].default
    mini_batches = _get(data, "learner", "mini_batches") or 1
    return steps * mini_batches if isinstance(steps, int) and isinstance(mini_batches, int) else None
