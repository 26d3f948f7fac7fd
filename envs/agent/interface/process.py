"""Run a command to its end, with its children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentloop.errors import EnvError, UserError

_OUTPUT_BYTES = 1 << 20
"""Bytes to keep from the end of each stream."""
_SHOWN = 2000
"""Maximum characters of stderr in an error."""


async def run_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: bytes = b"",
    folder: Path | None = None,
    option: str = "command",
) -> bytes:
    """Return the end of what a command writes to stdout. Cancelling kills it with all processes of its group.

    `option` of env.options gave the command; the error names it.
    Raises `EnvError` if the command fails, and `UserError` if it cannot be started.
    """
    process = await _start(command, environment, folder, option)
    try:
        output, errors = await _talk(process, stdin)
    finally:
        # End processes that the command left in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode:
        said = (errors.strip() or output.strip()).decode(errors="replace")
        raise EnvError(f"the command {command[0]!r} ended with status {process.returncode}: {said[-_SHOWN:]}")
    return output


async def _start(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None, option: str
) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=folder, start_new_session=True
        )
    except OSError as error:
        raise UserError(
            f"The command of the agent, {' '.join(command)!r}, cannot be started: {error.strerror}. Correct "
            f"`{option}` in env.options."
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
        await _exit(process.pid)
        # Its children may hold the pipes open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, errors = await asyncio.gather(*reading)
        return output, errors
    finally:
        for task_ in reading:
            task_.cancel()


async def _exit(pid: int) -> None:
    """Wait until a process has exited. `Process.wait` would also wait for children that hold its pipes open."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, has_exited = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, has_exited.set)
    try:
        await has_exited.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while part := await stream.read(1 << 16):
        kept = (kept + part)[-_OUTPUT_BYTES:]
    return kept
