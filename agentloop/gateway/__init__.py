"""The gateway serves the APIs of OpenAI and Anthropic to an existing agent; its calls become exact trajectories."""

from agentloop.gateway.server import Gateway
from agentloop.gateway.session import Session
from agentloop.types.requests import Sampling

__all__ = ["Gateway", "Sampling", "Session"]
