"""`Fleet`: who of several serves the next request. Knows nothing of HTTP.

A request goes to the least loaded member that is up and has room; where there is none it waits, in order of arrival. A
member that failed is down until a probe succeeds: the pauses between probes grow, and no request is risked on it.

    up --report_down--> down --probe succeeds--> up
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from agentloop.errors import SandboxError
from agentloop.sandboxes.base import SandboxBusyError

FIRST_PAUSE = 0.25
LAST_PAUSE = 5.0
"""Seconds between two probes of a member that is down: from the first, doubling, to the last."""


class Member(Protocol):
    name: str
    problem: str
    """Why it is down."""
    in_flight: int
    """Requests that it has now."""

    @property
    def capacity(self) -> int:
        """Requests that it may have at once."""
        ...

    @property
    def load(self) -> float:
        """The lowest is served from first."""
        ...

    async def probe(self) -> bool:
        """Whether it can serve; never raises, and ends by itself."""
        ...


MemberT = TypeVar("MemberT", bound=Member)


class Fleet(Generic[MemberT]):
    """Members of one event loop. `patience`: seconds that requests wait while all members are down."""

    def __init__(self, members: Sequence[MemberT], patience: float) -> None:
        self.members = list(members)
        self._patience = patience
        self._down: dict[str, asyncio.Task[None]] = {}
        self._waiting: deque[asyncio.Future[MemberT]] = deque()
        self._giving_up: asyncio.TimerHandle | None = None
        self._given_up = False

    @property
    def waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._waiting)

    def is_up(self, member: MemberT) -> bool:
        return member.name not in self._down

    @asynccontextmanager
    async def lease(self, deadline: float = float("inf")) -> AsyncIterator[MemberT]:
        """A member with room, until the block ends.

        Raises `SandboxBusyError` at `deadline` (`time.monotonic()`), and `SandboxError` where all are down for longer
        than `patience`.
        """
        member = await self._acquire(deadline)
        try:
            yield member
        finally:
            self._release(member)

    def report_down(self, member: MemberT, problem: str) -> None:
        """It failed: nothing goes there before a probe has succeeded."""
        member.problem = problem
        if not self.is_up(member):
            return
        self._down[member.name] = asyncio.create_task(self._revive(member))
        if len(self._down) == len(self.members):
            self._giving_up = asyncio.get_running_loop().call_later(self._patience, self._give_up)

    async def close(self) -> None:
        """Stop probing; who waits gets a `SandboxError`."""
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._fail_waiting("The sandbox client was closed.")
        tasks = list(self._down.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _acquire(self, deadline: float) -> MemberT:
        if self._given_up:
            raise SandboxError(self._lament())
        if not self.waiting and (member := self._choose()) is not None:
            member.in_flight += 1
            return member
        waiter: asyncio.Future[MemberT] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        expiry = asyncio.timeout(deadline - time.monotonic() if deadline < float("inf") else None)
        try:
            async with expiry:
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(waiter.result())  # it came in the moment in which the wait ended
            if isinstance(error, TimeoutError) and expiry.expired():
                raise SandboxBusyError("No sandbox daemon had room in the time that the caller would wait.") from error
            raise

    def _release(self, member: MemberT) -> None:
        member.in_flight -= 1
        self._serve()

    def _choose(self) -> MemberT | None:
        ready = [m for m in self.members if self.is_up(m) and m.in_flight < m.capacity]
        return min(ready, key=lambda m: (m.load, random.random()), default=None)

    def _serve(self) -> None:
        """Give the room that there is to those who wait."""
        while self._waiting:
            if self._waiting[0].done():  # cancelled
                self._waiting.popleft()
            elif (member := self._choose()) is not None:
                member.in_flight += 1
                self._waiting.popleft().set_result(member)
            else:
                return

    async def _revive(self, member: MemberT) -> None:
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # many clients do not probe in step
            if await member.probe():
                break
            pause = min(2 * pause, LAST_PAUSE)
        del self._down[member.name]
        self._given_up = False
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._serve()

    def _give_up(self) -> None:
        self._given_up = True
        self._fail_waiting(self._lament())

    def _lament(self) -> str:
        problems = "; ".join(f"{member.name}: {member.problem}" for member in self.members)
        return f"No sandbox daemon has answered for {self._patience:.3g} s. {problems}"

    def _fail_waiting(self, message: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(SandboxError(message))
