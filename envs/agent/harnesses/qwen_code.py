"""Qwen Code, which speaks OpenAI's chat completions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentloop.envs.agent.harnesses.base import Harness, Launch
from agentloop.envs.agent.interface.endpoint import Endpoint

_FREE = 33_000
"""Tokens that Qwen Code reserves for a summary and an answer."""


def _launch(task: str, home: Path, endpoint: Endpoint, compact_at: int | None) -> Launch:
    variables = {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "OPENAI_MODEL": endpoint.model,
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
    }
    settings: dict[str, Any] = {}
    if compact_at is not None:
        settings["model"] = {"generationConfig": {"contextWindowSize": compact_at + _FREE}}
        settings["context"] = {"autoCompactThreshold": 1}
    files = {".qwen/settings.json": json.dumps(settings)}
    return Launch(["--yolo", "--auth-type", "openai"], variables, files, task)


HARNESS = Harness(
    name="qwen-code",
    program="qwen",
    install="npm install -g @qwen-code/qwen-code@0.24.4",
    versions=">=0.24.4,<1",
    speaks="/v1/chat/completions",
    launch=_launch,
)
