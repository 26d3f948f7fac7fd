"""Claude Code, which speaks Anthropic Messages."""

from __future__ import annotations

from pathlib import Path

from agentloop.envs.agent.harnesses.base import Harness, Launch
from agentloop.envs.agent.interface.endpoint import Endpoint
from agentloop.errors import UserError

_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)


_WINDOW, _MAX_COMPACT_AT = 180_000, 167_000
"""Tokens of a 200,000-token window that are not reserved for a summary, and the highest number at which it compacts."""


def _launch(task: str, home: Path, endpoint: Endpoint, compact_at: int | None) -> Launch:
    variables = {
        "ANTHROPIC_BASE_URL": endpoint.root_url,
        "ANTHROPIC_API_KEY": endpoint.api_key,
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # otherwise it refuses to run without confirmations as root
    }
    variables |= dict.fromkeys(_MODELS, endpoint.model)
    if compact_at is not None:
        if compact_at > _MAX_COMPACT_AT:
            raise UserError(
                f"`compact_at` in env.options is {compact_at}, but Claude Code compacts at {_MAX_COMPACT_AT} tokens or "
                "fewer: lower it."
            )
        variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = "200000"
        variables["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE"] = str(100 * compact_at / _WINDOW)
    return Launch(["--print", "--permission-mode", "bypassPermissions"], variables, stdin=task)


HARNESS = Harness(
    name="claude-code",
    program="claude",
    install="npm install -g @anthropic-ai/claude-code@2.1.328",
    versions=">=2.1.328,<3",
    speaks="/v1/messages",
    launch=_launch,
)
