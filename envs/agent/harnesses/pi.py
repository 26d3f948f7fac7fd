"""pi, which speaks OpenAI's chat completions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentloop.envs.agent.harnesses.base import Harness, Launch
from agentloop.envs.agent.interface.endpoint import Endpoint

_OUTPUT = 16_384
"""Tokens that pi reserves for an answer."""


def _launch(task: str, home: Path, endpoint: Endpoint, compact_at: int | None) -> Launch:
    provider = {"baseUrl": endpoint.base_url, "api": "openai-completions", "apiKey": "AGENTLOOP_API_KEY"}
    about: dict[str, Any] = {"id": endpoint.model}
    settings: dict[str, Any] = {}
    if compact_at is not None:
        about["contextWindow"] = compact_at + _OUTPUT
        # pi keeps the last messages in addition to the summary.
        settings["compaction"] = {"reserveTokens": _OUTPUT, "keepRecentTokens": compact_at // 4}
    models = {"providers": {"agentloop": provider | {"models": [about]}}}
    files = {".pi/agent/models.json": json.dumps(models), ".pi/agent/settings.json": json.dumps(settings)}
    variables = {
        "PI_CODING_AGENT_DIR": str(home / ".pi" / "agent"),
        "AGENTLOOP_API_KEY": endpoint.api_key,
        "PI_OFFLINE": "1",
    }
    arguments = ["--provider", "agentloop", "--model", endpoint.model, "--print"]
    return Launch(arguments, variables, files, task)


HARNESS = Harness(
    name="pi",
    program="pi",
    install="npm install -g @mariozechner/pi-coding-agent@0.73.1",
    versions=">=0.73.1,<1",
    speaks="/v1/chat/completions",
    launch=_launch,
)
