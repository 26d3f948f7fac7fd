"""The gateway: somebody's agent calls OpenAI's API, and what it leaves are exact trajectories."""

from agentloop.gateway.server import Gateway
from agentloop.gateway.session import Sampling, Session

__all__ = ["Gateway", "Sampling", "Session"]
