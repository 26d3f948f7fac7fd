"""agentloop: agentic multi-turn reinforcement learning. Public names load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentloop.api.evaluation import RolloutResult, rollout
    from agentloop.api.fine_tuning import dpo, sft
    from agentloop.api.result import RunResult, load_run, read_trajectories
    from agentloop.api.training import train
    from agentloop.config.algorithm import AlgorithmConfig
    from agentloop.config.auxiliary_model import CriticConfig, ProcessRewardConfig
    from agentloop.config.fine_tuning import (
        ConversationsConfig,
        FineTuningConfig,
        FineTuningEvalConfig,
        FineTuningSettings,
    )
    from agentloop.config.learner import LearnerConfig
    from agentloop.config.placement import PlacementConfig
    from agentloop.config.records import LoggerConfig, ProfilerConfig
    from agentloop.config.rollout import EngineConfig, EvalConfig, LimitsConfig, RenderingConfig, SamplingConfig
    from agentloop.config.run import RunConfig, RunSettings
    from agentloop.config.staleness import StalenessConfig
    from agentloop.config.tasks import DataConfig, EnvConfig, ToolConfig
    from agentloop.config.workers import WorkersConfig
    from agentloop.envs.base import Env, Observation
    from agentloop.envs.rewards import Reward
    from agentloop.envs.tool_env import ToolEnv
    from agentloop.episodes.loop import AgentLoop
    from agentloop.episodes.scripted import play_script
    from agentloop.errors import EnvError, FailureKind, ToolError, UserError
    from agentloop.tools.base import Tool, ToolContext, ToolResult
    from agentloop.tools.function import tool
    from agentloop.tools.toolset import Toolset
    from agentloop.types.limits import Limits, StopReason
    from agentloop.types.messages import Message
    from agentloop.types.trajectory import Trajectory

_HOME = {
    "AgentLoop": "agentloop.episodes.loop",
    "AlgorithmConfig": "agentloop.config.algorithm",
    "ConversationsConfig": "agentloop.config.fine_tuning",
    "CriticConfig": "agentloop.config.auxiliary_model",
    "DataConfig": "agentloop.config.tasks",
    "EngineConfig": "agentloop.config.rollout",
    "Env": "agentloop.envs.base",
    "EnvConfig": "agentloop.config.tasks",
    "EnvError": "agentloop.errors",
    "EvalConfig": "agentloop.config.rollout",
    "FailureKind": "agentloop.errors",
    "FineTuningConfig": "agentloop.config.fine_tuning",
    "FineTuningEvalConfig": "agentloop.config.fine_tuning",
    "FineTuningSettings": "agentloop.config.fine_tuning",
    "LearnerConfig": "agentloop.config.learner",
    "Limits": "agentloop.types.limits",
    "LimitsConfig": "agentloop.config.rollout",
    "LoggerConfig": "agentloop.config.records",
    "Message": "agentloop.types.messages",
    "Observation": "agentloop.envs.base",
    "PlacementConfig": "agentloop.config.placement",
    "ProcessRewardConfig": "agentloop.config.auxiliary_model",
    "ProfilerConfig": "agentloop.config.records",
    "RenderingConfig": "agentloop.config.rollout",
    "Reward": "agentloop.envs.rewards",
    "RolloutResult": "agentloop.api.evaluation",
    "RunConfig": "agentloop.config.run",
    "RunResult": "agentloop.api.result",
    "RunSettings": "agentloop.config.run",
    "SamplingConfig": "agentloop.config.rollout",
    "StalenessConfig": "agentloop.config.staleness",
    "StopReason": "agentloop.types.limits",
    "Tool": "agentloop.tools.base",
    "ToolConfig": "agentloop.config.tasks",
    "ToolContext": "agentloop.tools.base",
    "ToolEnv": "agentloop.envs.tool_env",
    "ToolError": "agentloop.errors",
    "ToolResult": "agentloop.tools.base",
    "Toolset": "agentloop.tools.toolset",
    "Trajectory": "agentloop.types.trajectory",
    "UserError": "agentloop.errors",
    "WorkersConfig": "agentloop.config.workers",
    "dpo": "agentloop.api.fine_tuning",
    "load_run": "agentloop.api.result",
    "play_script": "agentloop.episodes.scripted",
    "read_trajectories": "agentloop.api.result",
    "rollout": "agentloop.api.evaluation",
    "sft": "agentloop.api.fine_tuning",
    "tool": "agentloop.tools.function",
    "train": "agentloop.api.training",
}

__all__ = [
    "AgentLoop",
    "AlgorithmConfig",
    "ConversationsConfig",
    "CriticConfig",
    "DataConfig",
    "EngineConfig",
    "Env",
    "EnvConfig",
    "EnvError",
    "EvalConfig",
    "FailureKind",
    "FineTuningConfig",
    "FineTuningEvalConfig",
    "FineTuningSettings",
    "LearnerConfig",
    "Limits",
    "LimitsConfig",
    "LoggerConfig",
    "Message",
    "Observation",
    "PlacementConfig",
    "ProcessRewardConfig",
    "ProfilerConfig",
    "RenderingConfig",
    "Reward",
    "RolloutResult",
    "RunConfig",
    "RunResult",
    "RunSettings",
    "SamplingConfig",
    "StalenessConfig",
    "StopReason",
    "Tool",
    "ToolConfig",
    "ToolContext",
    "ToolEnv",
    "ToolError",
    "ToolResult",
    "Toolset",
    "Trajectory",
    "UserError",
    "WorkersConfig",
    "dpo",
    "load_run",
    "play_script",
    "read_trajectories",
    "rollout",
    "sft",
    "tool",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agentloop' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
