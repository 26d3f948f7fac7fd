"""`DataConfig` and `EnvConfig`: the tasks of a run, their environment, its tools and its reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from agentloop.envs.rewards import RewardSpec
from agentloop.registry.options import HAS_PATHS, Config, ConfigOptions, ConfigPath, named


def _one_or_several(value: Any) -> str:
    return "<several>" if isinstance(value, list | tuple) else "<one>"


def _datasets_or_sources(value: Any) -> str:
    items = value if isinstance(value, list | tuple) else [value]
    has_sources = any(isinstance(each, Mapping | SourceConfig) for each in items)
    return "<sources>" if has_sources else _one_or_several(value)


# Errors of a union with tags are those of one member. Without tags, each member would complain.
_OneDataset = Annotated[ConfigPath, Tag("<one>")]
_SeveralDatasets = Annotated[tuple[ConfigPath, ...], Tag("<several>")]
Datasets = Annotated[_OneDataset | _SeveralDatasets, Discriminator(_one_or_several)]
"""Value of a config: a dataset, or a list of datasets."""


class DatasetsConfig(Config):
    """Datasets of a training run; each kind of run has its own `train`.

    A dataset is a .jsonl, .json, .csv or .parquet file, a folder, a function 'file.py:name' / 'package.module:name', or
    a list of these.
    """

    train_options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function in `train`."""
    train_limit: int | None = Field(default=None, ge=1)
    """Number of rows to use, from the first; None: all."""
    shuffle: bool = True
    """Shuffle the rows in every epoch."""
    eval: Datasets | None = None
    """Held-out rows."""
    eval_options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function in `eval`."""
    eval_limit: int | None = Field(default=None, ge=1)
    """Number of held-out rows to use, from the first; None: all."""

    @field_validator("train", "eval", mode="before", check_fields=False)
    @classmethod
    def _names_rows(cls, value: Any) -> Any:
        items = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(each, Mapping) and "source" not in each for each in items):
            raise ValueError(
                "a config names a dataset and does not contain rows. Write a function that returns the rows, and pass "
                "the function or its name 'file.py:name'."
            )
        return value


class SourceConfig(Config):
    """One of several sources of tasks."""

    source: ConfigPath
    """A dataset: a file, a folder or a function."""
    name: str = ""
    """Name in the metrics; empty: the name of the file or function."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the tasks, relative to the weights of the other sources."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function in `source`."""
    limit: int | None = Field(default=None, ge=1)
    """Number of rows to use, from the first; None: all."""
    keep: tuple[float, float] | None = None
    """Bounds of the moving average of a task's reward. A task outside the bounds is played only every fifth time that
    it is due."""
    levels: Annotated[list[dict[str, Any]], HAS_PATHS] = Field(default_factory=list)
    """Options of each level, from easy to hard; they are added to `options`."""
    raise_at: float = 0.8
    """Mean reward of the last 32 groups at which the next level begins."""

    @field_validator("keep")
    @classmethod
    def _bounds_are_ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] >= value[1]:
            raise ValueError(f"the bounds {list(value)} keep no task: write the lower one first.")
        return value

    @model_validator(mode="after")
    def _rises_through_levels(self) -> Self:
        if not self.levels and self.raise_at != type(self).model_fields["raise_at"].default:
            raise ValueError(f"raise_at is {self.raise_at:g}, but `levels` is empty: set it, or remove raise_at.")
        return self

    @property
    def shown_name(self) -> str:
        """Name in the metrics."""
        return self.name or self.source.rpartition(":")[2].rpartition("/")[2].partition(".")[0]


class DataConfig(DatasetsConfig):
    """Datasets of a run.

    A dataset is a .jsonl, .json, .csv or .parquet file, a folder, a function 'file.py:name' / 'package.module:name', or
    a list of these.
    """

    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Skip rows whose messages and tools have more tokens. None: only `limits.max_tokens` applies, and an episode with
    a longer prompt ends at once."""
    train: Annotated[
        _OneDataset | _SeveralDatasets | Annotated[tuple[SourceConfig, ...], Tag("<sources>")],
        Discriminator(_datasets_or_sources),
    ]
    """Rows to train on: a dataset, a list of datasets, or a list of sources with weights."""

    @model_validator(mode="after")
    def _sources_have_their_own_settings(self) -> Self:
        sources = self.sources
        names = [each.shown_name for each in sources]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two sources of data.train are named {', '.join(twice)}: give each a `name`.")
        if sources and (self.train_options or self.train_limit is not None):
            raise ValueError(
                "data.train has sources: write `options` and `limit` in each, not train_options or train_limit."
            )
        return self

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """Weighted sources of `train`; empty if `train` has only datasets."""
        return () if isinstance(self.train, str) else tuple(e for e in self.train if isinstance(e, SourceConfig))

    @property
    def train_blocks(self) -> list[tuple[str | Sequence[str], Mapping[str, Any], int | None]]:
        """Return dataset, options and limit for each level of each source, or once for `train` without sources."""
        if self.sources:
            return [(e.source, {**e.options, **level}, e.limit) for e in self.sources for level in e.levels or [{}]]
        names = self.train if isinstance(self.train, str) else [e for e in self.train if isinstance(e, str)]
        return [(names, self.train_options, self.train_limit)]


class ToolConfig(Config):
    """A tool of the environment."""

    name: ConfigPath
    """Registered name (`agentloop tools list`), or 'file.py:Class' / 'package.module:Class'."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of its constructor."""


class EnvConfig(Config):
    """The environment that answers the model, its tools, and the reward of an episode."""

    factory: ConfigPath = "tool"
    """Registered environment (`tool`, `gymnasium`, `openenv`, `agent`), or your own: 'file.py:name',
    'package.module:name'. Each episode calls factory(row, toolset=..., reward=..., **options)."""
    options: ConfigOptions = Field(default_factory=dict)
    """Further arguments of the factory."""
    prepare_ahead: int = Field(default=8, ge=0)
    """Number of waiting episodes whose environment is prepared while others play: boxes of Harbor tasks start. 0
    prepares none."""
    tools: list[Annotated[ToolConfig, BeforeValidator(named), HAS_PATHS]] = Field(default_factory=list)
    """Tools that the model may call; a plain string is a name."""
    reward: RewardSpec | None = None
    """Built-in reward (docs/guides/rewards.md), your own, 'file.py:name' / 'package.module:name', or a list of rewards
    with weights. Environments that score their own moves need none."""
    reward_options: ConfigOptions = Field(default_factory=dict)
    """Keyword arguments of a single reward."""
