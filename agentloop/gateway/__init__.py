"""The gateway serves OpenAI's API to an existing agent and keeps its calls as exact trajectories."""

from agentloop.gateway.server import Gateway
from agentloop.gateway.session import Session
from agentloop.types.requests import Sampling

__all__ = ["Gateway", "Sampling", "Session"]
