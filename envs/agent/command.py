"""Run an agent that is a command, in any language, as one process per episode.

The command finds its model like official clients, through the variables OPENAI_BASE_URL, OPENAI_API_KEY and
OPENAI_MODEL, or those that begin with ANTHROPIC_. It reads its task as JSON from stdin. Its output is its answer,
unless it writes a JSON object with `answer`, `reward` or both to the file that AGENTLOOP_RESULT names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentloop.envs.agent.interface.endpoint import AgentResult, Endpoint
from agentloop.envs.agent.interface.process import run_process
from agentloop.errors import EnvError, nearest
from agentloop.process import owned_folders

_FIELDS = ("answer", "reward")


async def run_command(command: Sequence[str], task: Mapping[str, Any], endpoint: Endpoint) -> AgentResult:
    """Run a command to its end. Cancelling kills all processes of its group.

    Raises `EnvError` if the command fails, and `UserError` if it cannot be started.
    """
    with owned_folders.temporary("agentloop-agent-") as folder:
        result = folder / "result.json"
        variables = variables_of(endpoint) | {"AGENTLOOP_RESULT": str(result)}
        stdin = json.dumps(dict(task), default=str).encode()
        output = await run_process(command, os.environ | variables, stdin=stdin)
        return _result(result, output)


def variables_of(endpoint: Endpoint) -> dict[str, str]:
    """Return the environment variables by which official clients find their model."""
    return {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "OPENAI_MODEL": endpoint.model,
        "ANTHROPIC_BASE_URL": endpoint.root_url,
        "ANTHROPIC_API_KEY": endpoint.api_key,
        "ANTHROPIC_MODEL": endpoint.model,
    }


def _result(path: Path, output: bytes) -> AgentResult:
    answer = output.decode(errors="replace").strip() or None
    if not path.exists():
        return AgentResult(answer=answer)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvError(f"the command did not write a JSON object to AGENTLOOP_RESULT: {error}") from error
    if not isinstance(found, dict):
        raise EnvError(f"the command did not write a JSON object to AGENTLOOP_RESULT, but {type(found).__name__}")
    for field in found:
        if field not in _FIELDS:
            known = ", ".join(_FIELDS)
            raise EnvError(f"AGENTLOOP_RESULT has no field {field!r}.{nearest(field, _FIELDS)} Its fields: {known}")
    answer, reward = found.get("answer", answer), found.get("reward")
    if answer is not None and not isinstance(answer, str):
        raise EnvError(f"`answer` in AGENTLOOP_RESULT must be a text, got {answer!r}")
    try:
        return AgentResult(answer, None if reward is None else float(reward))
    except (ValueError, TypeError) as error:
        raise EnvError(f"`reward` in AGENTLOOP_RESULT must be a number, got {reward!r}") from error
