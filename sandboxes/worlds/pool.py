"""`Pool`: lends worlds to executions, first come, first served."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from agentloop.sandboxes.interface.sandbox import SandboxBusyError
from agentloop.sandboxes.worlds.world import World


class Pool:
    """At most `size` worlds, made when needed. A pool belongs to one event loop."""

    def __init__(self, size: int, make: Callable[[], Awaitable[World]]) -> None:
        self.size = size
        self.busy = 0
        self._make = make
        self._free: list[World] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def lease(self, max_seconds: float) -> AsyncIterator[World]:
        """Lend a clean world. If it comes back alive with a running step, it is cleaned in the background.

        Raises `SandboxBusyError` if no world became free in time, and the errors of making one.
        """
        await self._turn(max_seconds)
        try:
            world = self._free.pop() if self._free else await self._make()
            while not world.alive:
                world = self._free.pop() if self._free else await self._make()
        except BaseException:
            self._next()
            raise
        try:
            yield world
        finally:
            world.when_clean(lambda: self._clean(world))

    async def _turn(self, max_seconds: float) -> None:
        if self.busy < self.size and not self._waiting:
            self.busy += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the turn.
            async with asyncio.timeout(None if max_seconds == float("inf") else max_seconds):
                await turn
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.done() and not turn.cancelled():
                self._next()
            if isinstance(error, TimeoutError):
                raise SandboxBusyError(
                    f"No slot became free in {max_seconds:g} s: {self.busy} are busy, {len(self._waiting)} wait."
                ) from None
            raise

    def _clean(self, world: World) -> None:
        """Take back a world that is clean or dead. A dead one is dropped."""
        if world.alive:
            if self._closed:
                world.destroy()
            else:
                self._free.append(world)
        self._next()

    def _next(self) -> None:
        """Give a free place to the request that has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.busy -= 1

    def close(self) -> None:
        """End the free worlds. Those in use end with their lease."""
        self._closed = True
        for world in self._free:
            world.destroy()
        self._free.clear()
