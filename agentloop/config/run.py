"""`RunConfig`: a training run as the user writes it. `agentloop.trainer.run.checks` rejects runs that cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agentloop.config.algorithm import AlgorithmConfig
from agentloop.config.auxiliary_model import CriticConfig, ProcessRewardConfig
from agentloop.config.learner import LearnerConfig
from agentloop.config.old_keys import advice
from agentloop.config.placement import PlacementConfig
from agentloop.config.records import LoggerConfig, ProfilerConfig
from agentloop.config.rollout import EngineConfig, EvalConfig, LimitsConfig, RenderingConfig, SamplingConfig
from agentloop.config.staleness import StalenessConfig
from agentloop.config.tasks import DataConfig, EnvConfig
from agentloop.config.workers import WorkersConfig
from agentloop.registry.options import HAS_PATHS, Config, ConfigPath, named

L = TypeVar("L", bound=LearnerConfig)


class StepSettings(Config):
    """Length, folder and loggers of a training run."""

    folder: str | None = None
    """Folder of the run; resumes if it has a checkpoint. Default: a new folder below runs/."""
    steps: int = Field(default=100, ge=1)
    """Number of steps."""
    epochs: float | None = Field(default=None, gt=0)
    """Number of passes over the training data; set this or `steps`, and the other to null."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order of tasks, of sampling and of training."""
    save_every: int = Field(default=10, ge=1)
    """Number of steps between checkpoints; the last step is always saved."""
    keep_last: int = Field(default=2, ge=1)
    """Number of checkpoints that are kept."""
    loggers: tuple[Annotated[LoggerConfig, BeforeValidator(named), HAS_PATHS], ...] = (
        LoggerConfig(name="tensorboard"),
    )
    """Loggers in addition to metrics.jsonl, which is always written; a plain string is a name."""

    @model_validator(mode="before")
    @classmethod
    def _may_leave_steps_open(cls, data: Any) -> Any:
        """Treat null steps as unset: a recipe with steps is then run by epochs."""
        if isinstance(data, Mapping) and "steps" in data and data["steps"] is None:
            return {key: value for key, value in data.items() if key != "steps"}
        return data


class RunSettings(StepSettings):
    """Length, folder and loggers of a run."""

    steps: int = Field(default=100, ge=1)
    """Number of steps; each trains once on `algorithm.groups_per_step` groups."""
    save_trajectories: int | None = Field(default=None, ge=0)
    """Number of trajectories to write per step; None writes all."""
    max_failure_fraction: float = Field(default=0.5, ge=0, le=1)
    """Largest fraction of failed episodes in a step; the run stops if more fail."""
    max_logprob_diff: float | None = Field(default=0.3, gt=0)
    """Largest mean difference of the log-probabilities of engine and learner in the first step, and after a resume, in
    nats; the run stops if it is larger, because they compute different models. None: no bound."""


class TrainingConfig(Protocol):
    """Sections that all training runs share: `RunConfig` and `FineTuningConfig`."""

    @property
    def model(self) -> str: ...

    @property
    def learner(self) -> LearnerConfig: ...

    @property
    def run(self) -> StepSettings: ...

    @property
    def profiler(self) -> ProfilerConfig: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """Return the config as plain data."""
        ...


def without_settings_of_the_run(learner: L) -> L:
    """Return the learner. Raises `ValueError` for a setting that belongs to another section of the run."""
    for name in sorted(learner.model_fields_set):
        if sentence := advice(f"learner.{name}"):
            raise ValueError(sentence)
    return learner


class RunConfig(Config):
    """One training run."""

    model: ConfigPath
    """Name on the Hugging Face hub, or a folder ('./model')."""
    base_model: ConfigPath | None = None
    """Model from which an earlier stage makes `model`. `plan` and `--dry-run` use it until `model` exists."""
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
    learner: Annotated[LearnerConfig, AfterValidator(without_settings_of_the_run)] = Field(
        default_factory=LearnerConfig
    )
    """Trainer of the policy. `model`, `sampling.temperature` and `run.seed` set its model, temperature and seed."""
    critic: CriticConfig = Field(default_factory=CriticConfig)
    """The critic of the advantage `gae`; other advantages do not load it."""
    process_reward: ProcessRewardConfig = Field(default_factory=ProcessRewardConfig)
    """The process reward model of the advantage `prime`; other advantages do not load it."""
    eval: EvalConfig = Field(default_factory=EvalConfig)
    run: RunSettings = Field(default_factory=RunSettings)
    profiler: ProfilerConfig = Field(default_factory=ProfilerConfig)

    def max_tokens(self, context: int | None = None) -> int:
        """Return the largest number of tokens in an episode, given the model's context length (None: unknown).

        This is `limits.max_tokens` if it is set, else the smaller of the context and `learner.token_budget`.
        """
        budget = self.learner.token_budget
        return self.limits.max_tokens or min(budget, context or budget)

    @property
    def trajectories_per_step(self) -> int:
        """Number of episodes per step."""
        return self.algorithm.groups_per_step * self.algorithm.group_size

    @property
    def schedule_updates(self) -> int | None:
        """Length of the learning rate's schedule in updates; None while it depends on `run.epochs`."""
        return schedule_updates(self)


def schedule_updates(config: TrainingConfig) -> int | None:
    """Return the length of the learning rate's schedule in updates; None while it depends on `run.epochs`."""
    if config.learner.total_updates is not None or config.run.epochs is not None:
        return config.learner.total_updates
    return config.run.steps * config.learner.mini_batches
