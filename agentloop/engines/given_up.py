"""`GivenUp`: ends the turns of an engine that is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from agentloop.engines.base import EngineDead, Generation


class GivenUp:
    """Set when an engine is given up, so that nobody waits for it."""

    def __init__(self) -> None:
        self._is_set = False
        self._turns: set[asyncio.Timeout] = set()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        now = asyncio.get_running_loop().time()
        while self._turns:
            self._turns.pop().reschedule(now)

    async def unless(self, turn: Awaitable[Generation]) -> Generation:
        """Return the turn; raise `EngineDead` as soon as its engine is given up.

        The turn gets no task of its own: that would cost each turn 20 us and three rounds of the event loop.
        """
        try:
            async with asyncio.timeout(0.0 if self._is_set else None) as limit:
                self._turns.add(limit)
                try:
                    return await turn
                finally:
                    self._turns.discard(limit)
        except TimeoutError as error:
            if self._is_set:
                raise EngineDead("the engine hangs") from error
            raise
