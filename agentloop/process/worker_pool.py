"""Pool of processes that answer JSON requests, started on demand and killed when a request times out.

Use it for C code and pure Python that cannot be interrupted otherwise. A worker is a script that reads JSON lines from
stdin and answers each with a JSON line on stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LINE_BYTES = 64 << 20
_LONG = 100_000
"""Size of an answer in bytes above which parsing it would block the event loop for milliseconds."""
_START_SECONDS = 120.0
"""Seconds that a new worker has to import its modules on a busy machine."""


class WorkerDiedError(Exception):
    """The process ended during a request, for example because it exceeded a resource limit."""


class Workers:
    """A pool that runs at most `size` requests at once; others wait. It belongs to one event loop at a time."""

    def __init__(self, script: Path, size: int, *, hello: Mapping[str, Any] | None = None) -> None:
        """`hello` is the first request of each new worker, so that no other request pays for its imports."""
        self._script = script
        self._size = size
        self._hello = hello
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Semaphore(size)
        self._idle: list[asyncio.subprocess.Process] = []

    async def ask(self, request: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """Return the answer to a request.

        Raises `TimeoutError` after `seconds`, not counting the wait for a worker, `WorkerDiedError` if the process
        ends, and `ValueError` for an answer of more than 64 MiB.
        """
        if self._loop is not asyncio.get_running_loop():  # workers of an earlier loop ended with it
            self._loop, self._idle, self._room = asyncio.get_running_loop(), [], asyncio.Semaphore(self._size)
        async with self._room:
            worker = self._idle.pop() if self._idle else await self._start()
            try:
                async with asyncio.timeout(seconds):
                    answer = await _ask(worker, request)
            except BaseException:
                await _kill(worker)
                raise
            self._idle.append(worker)
            return answer

    async def close(self) -> None:
        """End the workers."""
        idle, self._idle = self._idle, []
        if self._loop is asyncio.get_running_loop():
            await asyncio.gather(*map(_kill, idle))

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        # -I leaves the environment and the working directory out; site-packages stay.
        command = (sys.executable, "-I", str(self._script))
        worker = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=_LINE_BYTES, env={}
        )
        if self._hello is not None:
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await _ask(worker, self._hello)
            except BaseException:
                await _kill(worker)
                raise
        return worker


async def _ask(worker: asyncio.subprocess.Process, request: Mapping[str, Any]) -> dict[str, Any]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(request).encode() + b"\n")
        await worker.stdin.drain()
        line = await worker.stdout.readline()
    except (BrokenPipeError, ConnectionResetError) as error:
        raise WorkerDiedError from error
    if not line.endswith(b"\n"):
        raise WorkerDiedError
    answer: dict[str, Any] = json.loads(line) if len(line) < _LONG else await asyncio.to_thread(json.loads, line)
    return answer


async def _kill(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        worker.kill()
    await worker.wait()
    if worker.stdin is not None:
        worker.stdin.close()
