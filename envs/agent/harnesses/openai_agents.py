"""An agent with a shell from the OpenAI Agents SDK, which speaks OpenAI's Responses."""

from __future__ import annotations

from pathlib import Path

from agentloop.envs.agent.harnesses.base import PROGRAMS, Harness, Launch
from agentloop.envs.agent.interface.endpoint import Endpoint

_PROGRAM = PROGRAMS / "openai_agents_program.py"


def _launch(task: str, home: Path, endpoint: Endpoint, compact_at: int | None) -> Launch:
    variables = {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "OPENAI_MODEL": endpoint.model,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
    return Launch([str(home / _PROGRAM.name)], variables, {_PROGRAM.name: _PROGRAM.read_text()}, task)


HARNESS = Harness(
    name="openai-agents",
    program="python",
    install="pip install openai-agents==0.24.0",
    versions=">=0.24,<1",
    speaks="/v1/responses",
    launch=_launch,
    version_arguments=("-c", "from importlib.metadata import version; print(version('openai-agents'))"),
    compacts=False,
)
