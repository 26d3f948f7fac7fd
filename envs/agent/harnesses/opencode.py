"""opencode, which speaks OpenAI's chat completions. It requests a title in a separate conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentloop.envs.agent.harnesses.base import Harness, Launch
from agentloop.envs.agent.interface.endpoint import Endpoint

_OUTPUT = 32_000
"""Tokens that opencode reserves for an answer."""


def _launch(task: str, home: Path, endpoint: Endpoint, compact_at: int | None) -> Launch:
    about: dict[str, Any] = {"name": endpoint.model}
    if compact_at is not None:
        about["limit"] = {"context": compact_at + _OUTPUT, "output": _OUTPUT}
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # bundled with the program
        "name": "agentloop",
        "options": {"baseURL": endpoint.base_url, "apiKey": endpoint.api_key},
        "models": {endpoint.model: about},
    }
    model = f"agentloop/{endpoint.model}"
    config = {"model": model, "small_model": model, "autoupdate": False, "share": "disabled"}
    config |= {"permission": "allow", "provider": {"agentloop": provider}}
    variables = {
        "OPENCODE_CONFIG": str(home / "opencode.json"),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    return Launch(["run"], variables, {"opencode.json": json.dumps(config)}, task)


HARNESS = Harness(
    name="opencode",
    program="opencode",
    install="npm install -g opencode-ai@1.18.33",
    versions=">=1.18.33,<2",
    speaks="/v1/chat/completions",
    launch=_launch,
)
