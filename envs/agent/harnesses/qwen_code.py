"""Qwen Code, which speaks OpenAI's chat completions."""

from __future__ import annotations

from pathlib import Path

from agentloop.envs.agent.endpoint import Endpoint
from agentloop.envs.agent.harnesses.base import Harness, Launch


def _launch(task: str, home: Path, endpoint: Endpoint) -> Launch:
    variables = {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "OPENAI_MODEL": endpoint.model,
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
    }
    return Launch(["--yolo", "--auth-type", "openai"], variables, stdin=task)


HARNESS = Harness(
    name="qwen-code",
    program="qwen",
    install="npm install -g @qwen-code/qwen-code@0.24.4",
    versions=">=0.24.4,<1",
    speaks="/v1/chat/completions",
    launch=_launch,
)
