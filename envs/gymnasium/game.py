"""`Game`: runs the calls of one gymnasium.Env in threads, one at a time, each within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from agentloop.errors import EnvError
from agentloop.process.threads import Threads

R = TypeVar("R")

_THREADS = Threads("agentloop-gymnasium", 64)


class Game:
    """Owner of the environment that `make` creates.

    If a call times out, the environment is lost, because a thread cannot be stopped and the state is unknown.
    """

    def __init__(self, make: Callable[[], Any], *, timeout: float) -> None:
        self.env: Any = None
        """The environment; None until `start`."""
        self._make = make
        self._timeout = timeout
        self._lock = asyncio.Lock()
        self._running: Future[Any] | None = None

    async def start(self) -> None:
        """Create the environment."""
        await self.run(self._start)

    async def run(self, function: Callable[..., R], *args: Any) -> R:
        """Run `function(*args)` in a thread. Raises its errors, and `EnvError` if it takes too long."""
        async with self._lock:
            if self._running is not None:
                raise EnvError("the environment is lost: its last call timed out and may still be running")
            self._running = _THREADS.submit(function, *args)
            future = asyncio.wrap_future(self._running)
            done, _ = await asyncio.wait([future], timeout=self._timeout)
            if not done:
                future.add_done_callback(_forget)
                raise EnvError(f"the environment took longer than {self._timeout:g} s for one call")
            self._running = None
            return future.result()

    async def close(self) -> None:
        """Close the environment, after its running call if any."""
        if self._running is not None:
            self._running.add_done_callback(lambda _: self._close())
        elif self.env is not None:
            await self.run(self._close)

    def _start(self) -> None:
        self.env = self._make()

    def _close(self) -> None:
        if self.env is not None:
            self.env.close()


def _forget(future: asyncio.Future[Any]) -> None:
    """Drop the result of a call that timed out."""
    if not future.cancelled():
        future.exception()
