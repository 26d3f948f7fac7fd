"""A graph with a shell from LangGraph and langchain-openai, which speaks OpenAI's chat completions."""

from __future__ import annotations

from pathlib import Path

from agentloop.envs.agent.harnesses.base import PROGRAMS, Harness, Launch
from agentloop.envs.agent.interface.endpoint import Endpoint

_PROGRAM = PROGRAMS / "langgraph_program.py"


def _launch(task: str, home: Path, endpoint: Endpoint, compact_at: int | None) -> Launch:
    variables = {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "OPENAI_MODEL": endpoint.model,
        "LANGSMITH_TRACING": "false",
    }
    return Launch([str(home / _PROGRAM.name)], variables, {_PROGRAM.name: _PROGRAM.read_text()}, task)


HARNESS = Harness(
    name="langgraph",
    program="python",
    install="pip install langgraph==1.2.22 langchain-openai==1.7.3",
    versions=">=1.2,<2",
    speaks="/v1/chat/completions",
    launch=_launch,
    version_arguments=("-c", "from importlib.metadata import version; print(version('langgraph'))"),
    compacts=False,
)
