"""An agent that is a command, in any language: one process an episode.

The command finds its model as official clients do, through the variables OPENAI_BASE_URL, OPENAI_API_KEY and
OPENAI_MODEL. It reads its task as JSON from stdin. Its output is its answer. Instead it may write a JSON object with
`answer`, `reward` or both to the file that AGENTLOOP_RESULT names.
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
from typing import Any

from agentloop.envs.agent.endpoint import AgentResult, Endpoint
from agentloop.errors import EnvError, UserError

_OUTPUT_BYTES = 1 << 20
"""Bytes kept of the end of each stream."""
_SHOWN = 2000
"""Characters of stderr that an error shows."""


async def run_command(command: Sequence[str], task: Mapping[str, Any], endpoint: Endpoint) -> AgentResult:
    """Run a command to its end. Cancelling kills it with all processes of its group.

    Raises `EnvError` if the command fails, and `UserError` if it cannot be started.
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
            # End processes that it left in its group.
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
    """Write the task, and read the output until the process ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    reading = [asyncio.ensure_future(_tail(stream)) for stream in (process.stdout, process.stderr)]
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a command may ignore its task
            process.stdin.write(task)
            await process.stdin.drain()
            process.stdin.close()
        await process.wait()
        # Its children may hold the pipes open.
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
    answer = output.decode(errors="replace").strip() or None
    if not path.exists():
        return AgentResult(answer=answer)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        reward = found.get("reward")
        return AgentResult(found.get("answer", answer), None if reward is None else float(reward))
    except (ValueError, TypeError, AttributeError) as error:
        raise EnvError(f"the command wrote no JSON object into AGENTLOOP_RESULT: {error}") from error
