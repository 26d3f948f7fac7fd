"""`PreparedBox`: prepare one box for several episodes, each of which gets a copy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agentloop.boxes.interface.box import Box

_RUNS_NOTHING_ELSE = 'for folder in /proc/[0-9]*; do case "${folder#/proc/}" in 1|$$|$PPID) ;; *) exit 1 ;; esac; done'
"""Script that succeeds if the box runs only its first process and this script; our supervisor may be its parent."""


class PreparedBox:
    """Prepares a box once for `takers` callers of `take`, on one event loop.

    Each gets a copy; the last gets the box itself. Processes are not copied: if the preparation left one running, the
    first caller gets the box, and each of the others prepares another one.
    """

    def __init__(self, prepare: Callable[[], Awaitable[Box]], takers: int) -> None:
        """`prepare` starts a box and makes it ready; if it fails or is cancelled, it leaves no box behind."""
        self._prepare = prepare
        self._takers = takers
        self._preparing: asyncio.Task[tuple[Box, bool]] | None = None
        self._is_taken = False
        self._copying = 0
        self._copied = asyncio.Condition()

    async def take(self) -> Box:
        """Return a box that is ready and belongs to the caller. Raises what `prepare` and `Box.fork` raise."""
        try:
            box, can_copy = await self._ready()
        finally:
            self._takers -= 1
        if self._is_taken:
            return await self._prepare()
        if self._takers <= 0 or not can_copy:
            self._is_taken = True
            try:
                async with self._copied:
                    await self._copied.wait_for(lambda: self._copying == 0)
            except BaseException:
                self._is_taken = False  # so that `close` stops the box
                raise
            return box
        self._copying += 1
        try:
            return await box.fork()
        finally:
            self._copying -= 1
            async with self._copied:
                self._copied.notify_all()

    async def _ready(self) -> tuple[Box, bool]:
        """Return the box and whether it can be copied. After a failure the next caller prepares another one."""
        while True:
            mine = self._preparing is None
            if self._preparing is None:
                self._preparing = asyncio.create_task(self._make())
            task = self._preparing
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                return task.result()
            if self._preparing is task:
                self._preparing = None
            if mine:
                return task.result()  # raises

    async def _make(self) -> tuple[Box, bool]:
        box = await self._prepare()
        try:
            alone = await box.exec(["/bin/sh", "-c", _RUNS_NOTHING_ELSE], user="root", cwd="/", timeout=60)
            return box, alone.return_code == 0
        except BaseException:
            await box.stop()
            raise

    async def close(self) -> None:
        """Stop the box unless a caller has taken it. Copies keep running."""
        if self._preparing is None:
            return
        self._preparing.cancel()
        await asyncio.wait([self._preparing])
        if not self._is_taken and not self._preparing.cancelled() and self._preparing.exception() is None:
            await self._preparing.result()[0].stop()
