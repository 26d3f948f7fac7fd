"""Codex, which speaks OpenAI's Responses."""

from __future__ import annotations

from pathlib import Path

from agentloop.envs.agent.harnesses.base import Harness, Launch
from agentloop.envs.agent.interface.endpoint import Endpoint

_CONFIG = """\
model = "{model}"
model_provider = "agentloop"
web_search = "disabled"
check_for_update_on_startup = false

[model_providers.agentloop]
name = "agentloop"
base_url = "{base_url}"
wire_api = "responses"
env_key = "OPENAI_API_KEY"

[features]
apps = false
plugins = false
"""


def _launch(task: str, home: Path, endpoint: Endpoint, compact_at: int | None) -> Launch:
    limit = "" if compact_at is None else f"model_auto_compact_token_limit = {compact_at}\n"
    config = limit + _CONFIG.format(model=endpoint.model, base_url=endpoint.base_url)
    return Launch(
        ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-"],
        {"CODEX_HOME": str(home / ".codex"), "OPENAI_API_KEY": endpoint.api_key},
        {".codex/config.toml": config},
        task,
    )


HARNESS = Harness(
    name="codex",
    program="codex",
    install="npm install -g @openai/codex@0.169.0",
    versions=">=0.169,<1",
    speaks="/v1/responses",
    launch=_launch,
)
