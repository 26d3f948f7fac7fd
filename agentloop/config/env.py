"""`EnvConfig`: the environment with its tools and reward."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from agentloop.envs.rewards import RewardSpec
from agentloop.registry.options import HAS_PATHS, Config, ConfigOptions, ConfigPath, named


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
    tools: list[Annotated[ToolConfig, BeforeValidator(named), HAS_PATHS]] = Field(default_factory=list)
    """Tools that the model may call; a plain string is a name."""
    reward: RewardSpec | None = None
    """Built-in reward (docs/rewards.md), your own, 'file.py:name' / 'package.module:name', or a list of rewards with
    weights. Environments that score their own moves need none."""
    reward_options: ConfigOptions = Field(default_factory=dict)
    """Keyword arguments of a single reward."""
