"""agentloop: agentic multi-turn reinforcement learning. Names are loaded when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentloop.envs.base import Env, Observation
    from agentloop.rollout.loop import AgentLoop
    from agentloop.tools.base import Tool, ToolContext, ToolResult
    from agentloop.tools.function import tool
    from agentloop.types.limits import Limits, StopReason
    from agentloop.types.messages import Message
    from agentloop.types.trajectory import Trajectory

_HOME = {
    "AgentLoop": "agentloop.rollout.loop",
    "Env": "agentloop.envs.base",
    "Limits": "agentloop.types.limits",
    "Message": "agentloop.types.messages",
    "Observation": "agentloop.envs.base",
    "StopReason": "agentloop.types.limits",
    "Tool": "agentloop.tools.base",
    "ToolContext": "agentloop.tools.base",
    "ToolResult": "agentloop.tools.base",
    "Trajectory": "agentloop.types.trajectory",
    "tool": "agentloop.tools.function",
}

__all__ = [
    "AgentLoop",
    "Env",
    "Limits",
    "Message",
    "Observation",
    "StopReason",
    "Tool",
    "ToolContext",
    "ToolResult",
    "Trajectory",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agentloop' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
