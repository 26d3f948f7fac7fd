"""`RunConfig`: everything that one training run is. `agentloop.trainer.run_checks` says which ones cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator, with_config

from agentloop.config import HAS_PATHS, Config, ConfigOptions, ConfigPath
from agentloop.engines import known_engine
from agentloop.envs.rewards import RewardSpec
from agentloop.limits import Limits
from agentloop.rendering.formats import call_format
from agentloop.rendering.inline import InlineFormat
from agentloop.trainer.algorithm import AlgorithmConfig
from agentloop.trainer.companions import CriticConfig, ProcessRewardConfig
from agentloop.trainer.learner import LearnerConfig
from agentloop.trainer.loggers import known_logger
from agentloop.trainer.placement.config import PlacementConfig
from agentloop.trainer.recording import ProfilerTool, RecordingConfig
from agentloop.trainer.staleness.config import StalenessConfig
from agentloop.trainer.workers.config import WorkersConfig


@with_config(ConfigDict(extra="forbid"))
@dataclass(slots=True, frozen=True, kw_only=True)
class LimitsConfig(Limits):
    """`Limits`, strict about its keys."""


class DataConfig(Config):
    """Datasets: a .jsonl, .jsonl.gz or .parquet file, a folder, a function 'file.py:name' / 'package.module:name', or a
    list of them."""

    train: ConfigPath | tuple[ConfigPath, ...]
    train_options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function that `train` names."""
    train_limit: int | None = Field(default=None, ge=1)
    """Use the first rows only."""
    shuffle: bool = True
    """A new order in every epoch."""
    eval: ConfigPath | tuple[ConfigPath, ...] | None = None
    """Held-out tasks."""
    eval_options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function that `eval` names."""
    eval_limit: int | None = Field(default=None, ge=1)
    """Use the first held-out rows only."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Leave out rows whose messages, with the tools, are more tokens than that. None: `limits.max_tokens` is the only
    bound, and an episode whose prompt is longer ends at once."""


class ToolConfig(Config):
    name: ConfigPath
    """Of the registry (`agentloop tools list`), or 'file.py:Class' / 'package.module:Class'."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of its constructor."""


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class EnvConfig(Config):
    """The other side of the conversation, and what its outcome is worth."""

    factory: ConfigPath = "tool"
    """A registered environment (`tool`, `gymnasium`, `openenv`), or one of your own: 'file.py:name',
    'package.module:name'. Called as factory(row, toolset=..., reward=..., **options) for every episode."""
    options: ConfigOptions = Field(default_factory=dict)
    tools: list[Annotated[ToolConfig, BeforeValidator(_named), HAS_PATHS]] = Field(default_factory=list)
    """What the model may call; a plain string is the name of a tool."""
    reward: RewardSpec | None = None
    """A built-in reward (docs/rewards.md), one of your own, 'file.py:name' / 'package.module:name', or a list of
    them with weights. Environments that score their own moves need none."""
    reward_options: ConfigOptions = Field(default_factory=dict)
    """Keyword arguments of a single reward."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(slots=True, frozen=True, kw_only=True)
class InlineConfig(InlineFormat):
    """`InlineFormat`, strict about its keys."""


def _known_format(name: str) -> str:
    return call_format(name).name


class RenderingConfig(Config):
    """How messages become tokens, where the model's own files do not say it."""

    tool_format: Annotated[str, AfterValidator(_known_format)] | None = None
    """How the model writes calls, a name of `agentloop.rendering.formats`; by default what its chat template shows."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Handed to the chat template, such as {enable_thinking: false}."""
    chat_template: ConfigPath | None = None
    """A file that replaces the model's own template."""
    min_pixels: int | None = Field(default=None, gt=0)
    """Pictures are scaled to at least so many pixels, and to at most max_pixels; by default as the model's processor
    says."""
    max_pixels: int | None = Field(default=None, gt=0)
    inline: InlineConfig | None = None
    """Calls are tags in one long turn, as in the papers of ReTool, Search-R1 and SkyRL-SQL; tools are not shown to the
    model then, the prompt has to."""


class SamplingConfig(Config):
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 keeps all."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a turn, with the token that completes them. Calls need none."""


class EngineConfig(Config):
    name: Annotated[str, AfterValidator(known_engine)] = "hf"
    """`hf`, `vllm`, `sglang` or `scripted`."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of its constructor, beside the model."""
    max_concurrency: int = Field(default=256, ge=1)
    """Episodes in flight."""


class EvalConfig(Config):
    """Evaluation on the held-out tasks."""

    every: int = Field(default=0, ge=0)
    """Steps from one to the next; 0 never evaluates. The first is before step 1, the last after the last step."""
    samples: int = Field(default=1, ge=1)
    """Episodes of each task."""
    temperature: float = Field(default=0.0, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    """None: that of `sampling`."""


class LoggerConfig(Config):
    name: Annotated[ConfigPath, AfterValidator(known_logger)]
    """`tensorboard`, `wandb`, `mlflow`, or one of your own, 'file.py:Class' / 'package.module:Class'."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of its constructor, such as {project: my-agents} of wandb."""


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
    loggers: tuple[Annotated[LoggerConfig, BeforeValidator(_named), HAS_PATHS], ...] = (
        LoggerConfig(name="tensorboard"),
    )
    """Beside metrics.jsonl, which is always written; a plain string is the name of a logger."""


class ProfilerConfig(Config):
    """What is recorded of where the time goes, beside the seconds in metrics.jsonl."""

    timeline: bool = False
    """Write stages, episodes and the phases of every rank of the learner as a trace for ui.perfetto.dev,
    timeline-STEP.json in the folder of the run."""
    steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Of which the learner is profiled."""
    ranks: tuple[Annotated[int, Field(ge=0)], ...] | None = (0,)
    """Of the learner; None: all."""
    tool: ProfilerTool = "torch"
    """torch: profiles/learner-rankR-stepN.json.gz in the folder of the run, for ui.perfetto.dev. nsys: only marks where
    a profile begins and ends; start the run as `nsys profile --capture-range=cudaProfilerApi
    --capture-range-end=repeat ...`."""
    discrete: bool = False
    """A profile for each step, of the learner's part of it. Else one for steps that follow each other, from the
    beginning of the first to the end of the last, with what the process does between them."""

    def of_learner(self, folder: Path) -> RecordingConfig | None:
        """What the processes of the learner record; None where that is nothing."""
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
        return self.model_copy(
            update={
                "run": self.run.model_copy(update={"steps": steps, "epochs": None}),
                "learner": self.learner.model_copy(update={"total_updates": self.learner.total_updates or updates}),
            }
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
