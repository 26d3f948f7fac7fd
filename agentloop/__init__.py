"""agentloop: agentic multi-turn reinforcement learning. Names are loaded when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentloop.envs.base import Env, Observation
    from agentloop.envs.rewards import Reward
    from agentloop.envs.tool_env import ToolEnv
    from agentloop.errors import EnvError, FailureKind, ToolError, UserError
    from agentloop.rollout.loop import AgentLoop
    from agentloop.tools.base import Tool, ToolContext, ToolResult
    from agentloop.tools.function import tool
    from agentloop.tools.toolset import Toolset
    from agentloop.types.limits import Limits, StopReason
    from agentloop.types.messages import Message
    from agentloop.types.trajectory import Trajectory

_HOME = {
    "AgentLoop": "agentloop.rollout.loop",
    "Env": "agentloop.envs.base",
    "EnvError": "agentloop.errors",
    "FailureKind": "agentloop.errors",
    "Limits": "agentloop.types.limits",
    "Message": "agentloop.types.messages",
    "Observation": "agentloop.envs.base",
    "Reward": "agentloop.envs.rewards",
    "StopReason": "agentloop.types.limits",
    "Tool": "agentloop.tools.base",
    "ToolContext": "agentloop.tools.base",
    "ToolEnv": "agentloop.envs.tool_env",
    "ToolError": "agentloop.errors",
    "ToolResult": "agentloop.tools.base",
    "Toolset": "agentloop.tools.toolset",
    "Trajectory": "agentloop.types.trajectory",
    "UserError": "agentloop.errors",
    "tool": "agentloop.tools.function",
}

__all__ = [
    "AgentLoop",
    "Env",
    "EnvError",
    "FailureKind",
    "Limits",
    "Message",
    "Observation",
    "Reward",
    "StopReason",
    "Tool",
    "ToolContext",
    "ToolEnv",
    "ToolError",
    "ToolResult",
    "Toolset",
    "Trajectory",
    "UserError",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agentloop' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
