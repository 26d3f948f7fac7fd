"""Run a command to its end, with its children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentloop.errors import EnvError, UserError
from agentloop.sandboxes.worlds.streams import memory_file

_OUTPUT_BYTES = 1 << 20
"""Bytes to keep from the end of each stream."""
_DRAIN_SECONDS = 2.0
"""Seconds to read the rest of the output after the command has ended: a process that left its group may hold the
streams open."""
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
    source = memory_file([stdin])
    try:
        transport, program = await asyncio.get_running_loop().subprocess_exec(
            _Program, *command, stdin=source, env=dict(environment), cwd=folder, start_new_session=True
        )
    except OSError as error:
        raise UserError(
            f"The command of the agent, {' '.join(command)!r}, cannot be started: {error.strerror}. Correct "
            f"`{option}` in env.options."
        ) from error
    finally:
        os.close(source)
    try:
        await program.has_exited.wait()
        _kill_group(transport)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await program.is_drained.wait()
    finally:
        _kill_group(transport)
        await program.has_exited.wait()
        transport.close()
    output, errors = program.kept.values()
    if code := transport.get_returncode():
        said = (errors.strip() or output.strip()).decode(errors="replace")
        raise EnvError(f"the command {command[0]!r} ended with status {code}: {said[-_SHOWN:]}")
    return output


def _kill_group(transport: asyncio.SubprocessTransport) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(transport.get_pid(), signal.SIGKILL)


class _Program(asyncio.SubprocessProtocol):
    """A running command. `asyncio.subprocess.Process.wait` would also wait for children that hold its streams open."""

    def __init__(self) -> None:
        self.kept = {1: b"", 2: b""}
        """End of stdout and of stderr."""
        self.has_exited = asyncio.Event()
        self.is_drained = asyncio.Event()
        self._open = set(self.kept)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.kept[fd] = (self.kept[fd] + data)[-_OUTPUT_BYTES:]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.is_drained.set()

    def process_exited(self) -> None:
        self.has_exited.set()
