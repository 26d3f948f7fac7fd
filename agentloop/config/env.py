"""`EnvConfig`: the environment, its tools and its reward."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from agentloop.envs.rewards import RewardSpec
from agentloop.registry.options import HAS_PATHS, Config, ConfigOptions, ConfigPath, named


class ToolConfig(Config):
    name: ConfigPath
    """Of the registry (`agentloop tools list`), or 'file.py:Class' / 'package.module:Class'."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of its constructor."""


class EnvConfig(Config):
    """The other side of the conversation, and what its outcome is worth."""

    factory: ConfigPath = "tool"
    """A registered environment (`tool`, `gymnasium`, `openenv`), or one of your own: 'file.py:name',
    'package.module:name'. Called as factory(row, toolset=..., reward=..., **options) for every episode."""
    options: ConfigOptions = Field(default_factory=dict)
    tools: list[Annotated[ToolConfig, BeforeValidator(named), HAS_PATHS]] = Field(default_factory=list)
    """What the model may call; a plain string is the name of a tool."""
    reward: RewardSpec | None = None
    """A built-in reward (docs/rewards.md), one of your own, 'file.py:name' / 'package.module:name', or a list of
    them with weights. Environments that score their own moves need none."""
    reward_options: ConfigOptions = Field(default_factory=dict)
    """Keyword arguments of a single reward."""
