"""`FineTuningConfig`: a run that trains on given answers; `load_training_config` loads it or a `RunConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agentloop.config.learner import LearnerConfig
from agentloop.config.loading import load_config
from agentloop.config.records import ProfilerConfig
from agentloop.config.rollout import RenderingConfig
from agentloop.config.run import RunConfig, StepSettings, schedule_updates, without_settings_of_the_run
from agentloop.config.tasks import Datasets, DatasetsConfig, ToolConfig
from agentloop.registry.options import HAS_PATHS, Config, ConfigPath, named


class ConversationsConfig(DatasetsConfig):
    """Datasets of conversations, or of preference pairs (docs/guides/sft.md has their columns).

    A dataset is a .jsonl, .json, .csv or .parquet file, a folder, a function 'file.py:name' / 'package.module:name', or
    a list of these.
    """

    train: Datasets
    """Rows to train on."""
    tools: list[Annotated[ToolConfig, BeforeValidator(named), HAS_PATHS]] = Field(default_factory=list)
    """Tools that prompts show if a row has no `tools` column; a plain string is a name."""
    max_tokens: int | None = Field(default=None, ge=2)
    """Skip conversations with more tokens. None: as many as the model's context and learner.token_budget allow."""
    trained_turns: Literal["all", "last"] = "all"
    """Assistant turns that carry loss. last: earlier turns are context only."""


class FineTuningEvalConfig(Config):
    """Evaluation of a run on given answers."""

    every: int = Field(default=0, ge=0)
    """Number of steps between evaluations; 0 never evaluates. The first is before step 1, the last after the last
    step."""
    rollout: ConfigPath | None = None
    """Config of a run ('./config.yaml') whose held-out tasks the model also plays, with the engine, tools and reward of
    that config. None: only the loss on data.eval is computed."""


class FineTuningSettings(StepSettings):
    """Length, folder and loggers of a run on given answers."""

    steps: int = Field(default=100, ge=1)
    """Number of steps; each trains once on `batch_size` conversations or pairs."""
    epochs: float | None = Field(default=1.0, gt=0)
    """Number of passes over the training data; set this or `steps`, and the other to null."""

    @model_validator(mode="before")
    @classmethod
    def _has_one_length(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("steps") is not None:
            if data.get("epochs") is not None:
                raise ValueError(
                    f"run.steps is {data['steps']} and run.epochs is {data['epochs']}: set one of them to null."
                )
            return {**data, "epochs": None}
        return data


class FineTuningLearnerConfig(LearnerConfig):
    """How the model is trained on given answers. Only trained tokens carry loss."""

    loss: Literal["sft", "dpo"] = "sft"
    """sft: -log p, averaged over the trained tokens of the batch. dpo: direct preference optimisation (arXiv
    2305.18290), averaged over pairs; `agentloop dpo` sets it."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """Options of dpo: beta, label_smoothing."""
    reference: ConfigPath | None = None
    """Folder of the reference model; None: for dpo the model that the run starts from."""
    lr: float = Field(default=1e-5, ge=0)
    """Learning rate, after the warm-up."""


class FineTuningConfig(Config):
    """A run that trains on given answers: conversations (loss `sft`) or preference pairs (loss `dpo`)."""

    model: ConfigPath
    """Model to start from: a name on the Hugging Face hub, a folder ('./model'), or the folder of a finished run."""
    data: ConversationsConfig
    rendering: RenderingConfig = Field(default_factory=RenderingConfig)
    batch_size: int = Field(default=32, ge=1)
    """Number of conversations or pairs per step; micro-batches and gradient accumulation follow from
    learner.token_budget."""
    learner: Annotated[FineTuningLearnerConfig, AfterValidator(without_settings_of_the_run)] = Field(
        default_factory=FineTuningLearnerConfig
    )
    """Its model and seed are set by `model` and `run.seed`."""
    eval: FineTuningEvalConfig = Field(default_factory=FineTuningEvalConfig)
    run: FineTuningSettings = Field(default_factory=FineTuningSettings)
    profiler: ProfilerConfig = Field(default_factory=ProfilerConfig)

    def max_tokens(self, context: int | None = None) -> int:
        """Return the largest number of tokens in a conversation, given the model's context length (None: unknown)."""
        budget = self.learner.token_budget
        return self.data.max_tokens or min(budget, context or budget)

    def with_steps(self, num_rows: int) -> FineTuningConfig:
        """Return the config with `run.epochs` converted to steps for that number of conversations or pairs."""
        if self.run.epochs is None:
            return self
        steps = max(-(-round(num_rows * self.run.epochs) // self.batch_size), 1)
        return self.replace(run=self.run.replace(steps=steps, epochs=None))

    def learner_of(self, model: Path, folder: Path, reference: Path | None) -> LearnerConfig:
        """Return the learner with local folders of its models and with its settings from other sections."""
        return self.learner.replace(
            model=str(model),
            reference=None if reference is None else str(reference),
            seed=self.run.seed,
            chat_template=self.rendering.template_text,
            total_updates=schedule_updates(self),
            recording=self.profiler.of_learner(folder),
        )


def load_training_config(file: Path) -> RunConfig | FineTuningConfig:
    """Load the config of a training run of either kind. Raises `UserError` as `load_config` does."""
    return load_config(RunConfig, file) if _plays(file) else load_config(FineTuningConfig, file)


def _plays(file: Path) -> bool:
    """Return whether the config in a file is of a run that plays episodes: only these have an environment."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return True  # load_config reports what is wrong
    return not isinstance(content, Mapping) or "env" in content or "batch_size" not in content
