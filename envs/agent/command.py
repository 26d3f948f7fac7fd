"""An agent that is a command: started once an episode, in any language.

It finds its model as official clients do, by the variables OPENAI_BASE_URL and OPENAI_API_KEY (and OPENAI_MODEL), and
its task as JSON on stdin. What it prints is its answer. To say more it writes a JSON object with `answer`, `reward` or
both into the file that AGENTLOOP_RESULT names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.errors import EnvError, UserError

if TYPE_CHECKING:
    from agentloop.envs.agent.program import AgentResult, Endpoint

_OUTPUT_BYTES = 1 << 20
"""Of each stream: its end is kept."""
_SHOWN = 2000
"""Characters of stderr in an error."""


async def run_command(command: Sequence[str], task: Mapping[str, Any], endpoint: Endpoint) -> AgentResult:
    """Run it to its end; where this is cancelled, it is killed with all that it started.

    Raises `EnvError` where it fails, and `UserError` where it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="agentloop-agent-") as folder:
        result = Path(folder, "result.json")
        variables = {
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_KEY": endpoint.api_key,
            "OPENAI_MODEL": endpoint.model,
            "AGENTLOOP_RESULT": str(result),
        }
        process = await _start(command, os.environ | variables)
        try:
            output, errors = await _talk(process, json.dumps(dict(task), default=str).encode())
        finally:
            # What it left behind in its process group has nobody to answer.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode:
            raise EnvError(
                f"the command {command[0]!r} ended with status {process.returncode}: "
                f"{errors.decode(errors='replace').strip()[-_SHOWN:]}"
            )
        return _result(result, output)


async def _start(command: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
    except OSError as error:
        raise UserError(
            f"The command of the agent, {' '.join(command)!r}, cannot be started: {error.strerror}. Correct `command` "
            "in env.options."
        ) from error


async def _talk(process: asyncio.subprocess.Process, task: bytes) -> tuple[bytes, bytes]:
    """Give it the task, and read what it prints until it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    reading = [asyncio.ensure_future(_tail(stream)) for stream in (process.stdout, process.stderr)]
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read its task
            process.stdin.write(task)
            await process.stdin.drain()
            process.stdin.close()
        await process.wait()
        # What it started may hold the pipes open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, errors = await asyncio.gather(*reading)
        return output, errors
    finally:
        for task_ in reading:
            task_.cancel()


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while part := await stream.read(1 << 16):
        kept = (kept + part)[-_OUTPUT_BYTES:]
    return kept


def _result(path: Path, output: bytes) -> AgentResult:
    from agentloop.envs.agent.program import AgentResult

    answer = output.decode(errors="replace").strip() or None
    if not path.exists():
        return AgentResult(answer=answer)
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        reward = said.get("reward")
        return AgentResult(said.get("answer", answer), None if reward is None else float(reward))
    except (ValueError, TypeError, AttributeError) as error:
        raise EnvError(f"the command wrote no JSON object into AGENTLOOP_RESULT: {error}") from error
