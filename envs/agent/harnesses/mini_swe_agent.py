"""mini-swe-agent, which speaks OpenAI's chat completions through LiteLLM, without streams."""

from __future__ import annotations

from pathlib import Path

from agentloop.envs.agent.harnesses.base import Harness, Launch
from agentloop.envs.agent.interface.endpoint import Endpoint


def _launch(task: str, home: Path, endpoint: Endpoint, compact_at: int | None) -> Launch:
    variables = {
        "OPENAI_API_BASE": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": str(home / ".config"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it would download this
    }
    model = f"openai/{endpoint.model}"
    return Launch(["--yolo", "--exit-immediately", "--cost-limit", "0", "--model", model, "--task", task], variables)


HARNESS = Harness(
    name="mini-swe-agent",
    program="mini",
    install="pip install mini-swe-agent==2.4.6 mcp==2.0.0",
    versions=">=2.4.6,<3",
    speaks="/v1/chat/completions",
    launch=_launch,
    version_arguments=("--help",),
    compacts=False,
)
