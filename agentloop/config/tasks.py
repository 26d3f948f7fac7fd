"""`DataConfig` and `EnvConfig`: the tasks of a run, their environment, its tools and its reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from agentloop.envs.rewards import RewardSpec
from agentloop.registry.options import HAS_PATHS, Config, ConfigOptions, ConfigPath, named


class DatasetsConfig(Config):
    """Datasets of a training run.

    A dataset is a .jsonl, .json, .csv or .parquet file, a folder, a function 'file.py:name' / 'package.module:name', or
    a list of these.
    """

    train: ConfigPath | tuple[ConfigPath, ...]
    """Rows to train on."""
    train_options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function in `train`."""
    train_limit: int | None = Field(default=None, ge=1)
    """Number of rows to use, from the first; None: all."""
    shuffle: bool = True
    """Use another order in every epoch."""
    eval: ConfigPath | tuple[ConfigPath, ...] | None = None
    """Held-out rows."""
    eval_options: ConfigOptions = Field(default_factory=dict)
    """Arguments of the function in `eval`."""
    eval_limit: int | None = Field(default=None, ge=1)
    """Number of held-out rows to use, from the first; None: all."""

    @field_validator("train", "eval", mode="before")
    @classmethod
    def _names_rows(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
            raise ValueError(
                "a config names rows and does not hold them. Write a function that returns the rows, and give the "
                "function, or its name 'file.py:name'."
            )
        return value


class DataConfig(DatasetsConfig):
    """Datasets of a run.

    A dataset is a .jsonl, .json, .csv or .parquet file, a folder, a function 'file.py:name' / 'package.module:name', or
    a list of these.
    """

    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Skip rows whose messages and tools have more tokens. None: only `limits.max_tokens` applies, and an episode with
    a longer prompt ends at once."""


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
    tools: list[Annotated[ToolConfig, BeforeValidator(named), HAS_PATHS]] = Field(default_factory=list)
    """Tools that the model may call; a plain string is a name."""
    reward: RewardSpec | None = None
    """Built-in reward (docs/guides/rewards.md), your own, 'file.py:name' / 'package.module:name', or a list of rewards
    with weights. Environments that score their own moves need none."""
    reward_options: ConfigOptions = Field(default_factory=dict)
    """Keyword arguments of a single reward."""
