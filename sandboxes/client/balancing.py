"""`Fleet`: chooses which of several servers takes the next request. It knows nothing of HTTP.

A request goes to the least loaded member that is up and has room. If there is none, requests wait in order of arrival.
A member that failed is down, and gets no requests, until a probe succeeds. Pauses between probes grow.

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
from agentloop.sandboxes.interface.sandbox import SandboxBusyError


class Member(Protocol):
    """One server of a fleet."""

    name: str
    problem: str
    """Reason why the member is down."""
    in_flight: int
    """Number of requests in progress."""

    @property
    def capacity(self) -> int:
        """Return how many requests the member may serve at once."""
        ...

    @property
    def load(self) -> float:
        """Return the load of the member. The member with the lowest load is chosen."""
        ...

    async def probe(self) -> bool:
        """Return whether the member can serve. Never raises, and returns within its own timeout."""
        ...


MemberT = TypeVar("MemberT", bound=Member)


class Fleet(Generic[MemberT]):
    """The members as seen from one event loop.

    `patience` is the seconds that requests wait while all members are down. `first_pause` is the seconds before the
    first probe of a member that is down. The pause doubles after each failed probe, up to `last_pause`.
    """

    def __init__(
        self, members: Sequence[MemberT], patience: float, *, first_pause: float = 0.25, last_pause: float = 5.0
    ) -> None:
        self.members = list(members)
        self._patience = patience
        self._first_pause, self._last_pause = first_pause, last_pause
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
        """Lend a member with room until the block ends.

        Raises `SandboxBusyError` at `deadline` (`time.monotonic()`), and `SandboxError` if all members are down for
        longer than `patience`.
        """
        member = await self._acquire(deadline)
        try:
            yield member
        finally:
            self._release(member)

    def report_down(self, member: MemberT, problem: str) -> None:
        """Mark a failed member as down: it gets no requests until a probe succeeds."""
        member.problem = problem
        if not self.is_up(member):
            return
        self._down[member.name] = asyncio.create_task(self._revive(member))
        if len(self._down) == len(self.members):
            self._giving_up = asyncio.get_running_loop().call_later(self._patience, self._give_up)

    async def close(self) -> None:
        """Stop probing; waiting requests get a `SandboxError`."""
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._fail_waiting("The sandbox client was closed.")
        tasks = list(self._down.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _acquire(self, deadline: float) -> MemberT:
        if self._given_up:
            raise SandboxError(self._all_down())
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
                self._release(waiter.result())  # the member was assigned just when the wait ended
            if isinstance(error, TimeoutError) and expiry.expired():
                raise SandboxBusyError("No sandbox daemon had room within the allowed waiting time.") from error
            raise

    def _release(self, member: MemberT) -> None:
        member.in_flight -= 1
        self._serve()

    def _choose(self) -> MemberT | None:
        ready = [m for m in self.members if self.is_up(m) and m.in_flight < m.capacity]
        return min(ready, key=lambda m: (m.load, random.random()), default=None)

    def _serve(self) -> None:
        """Give free room to waiting requests."""
        while self._waiting:
            if self._waiting[0].done():  # cancelled
                self._waiting.popleft()
            elif (member := self._choose()) is not None:
                member.in_flight += 1
                self._waiting.popleft().set_result(member)
            else:
                return

    async def _revive(self, member: MemberT) -> None:
        pause = self._first_pause
        while True:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # so that many clients do not probe in step
            if await member.probe():
                break
            pause = min(2 * pause, self._last_pause)
        del self._down[member.name]
        self._given_up = False
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._serve()

    def _give_up(self) -> None:
        self._given_up = True
        self._fail_waiting(self._all_down())

    def _all_down(self) -> str:
        problems = "; ".join(f"{member.name}: {member.problem}" for member in self.members)
        return f"No sandbox daemon has answered for {self._patience:.3g} s. {problems}"

    def _fail_waiting(self, message: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(SandboxError(message))
