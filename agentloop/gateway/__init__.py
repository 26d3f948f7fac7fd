"""The gateway: somebody's agent calls OpenAI's API, and what it leaves are exact trajectories."""

from agentloop.gateway.server import Gateway
from agentloop.gateway.session import Session
from agentloop.types.requests import Sampling

__all__ = ["Gateway", "Sampling", "Session"]
