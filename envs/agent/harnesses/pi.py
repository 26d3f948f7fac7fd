"""pi, which speaks OpenAI's chat completions."""

from __future__ import annotations

import json
from pathlib import Path

from agentloop.envs.agent.endpoint import Endpoint
from agentloop.envs.agent.harnesses.base import Harness, Launch


def _launch(task: str, home: Path, endpoint: Endpoint) -> Launch:
    provider = {"baseUrl": endpoint.base_url, "api": "openai-completions", "apiKey": "AGENTLOOP_API_KEY"}
    models = {"providers": {"agentloop": provider | {"models": [{"id": endpoint.model}]}}}
    variables = {
        "PI_CODING_AGENT_DIR": str(home / ".pi" / "agent"),
        "AGENTLOOP_API_KEY": endpoint.api_key,
        "PI_OFFLINE": "1",
    }
    arguments = ["--provider", "agentloop", "--model", endpoint.model, "--print"]
    return Launch(arguments, variables, {".pi/agent/models.json": json.dumps(models)}, task)


HARNESS = Harness(
    name="pi",
    program="pi",
    install="npm install -g @mariozechner/pi-coding-agent@0.73.1",
    versions=">=0.73.1,<1",
    speaks="/v1/chat/completions",
    launch=_launch,
)
