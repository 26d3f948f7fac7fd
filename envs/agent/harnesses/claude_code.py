"""Claude Code, which speaks Anthropic Messages."""

from __future__ import annotations

from pathlib import Path

from agentloop.envs.agent.endpoint import Endpoint
from agentloop.envs.agent.harnesses.base import Harness, Launch

_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)


def _launch(task: str, home: Path, endpoint: Endpoint) -> Launch:
    variables = {
        "ANTHROPIC_BASE_URL": endpoint.root_url,
        "ANTHROPIC_API_KEY": endpoint.api_key,
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # as root it refuses to run without confirmations otherwise
    }
    variables |= dict.fromkeys(_MODELS, endpoint.model)
    return Launch(["--print", "--permission-mode", "bypassPermissions"], variables, stdin=task)


HARNESS = Harness(
    name="claude-code",
    program="claude",
    install="npm install -g @anthropic-ai/claude-code@2.1.328",
    versions=">=2.1.328,<3",
    speaks="/v1/messages",
    launch=_launch,
)
