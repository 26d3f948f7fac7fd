"""`Leases`: objects that clients hold by an unguessable id, until they release them or leave them idle."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from fastapi import HTTPException

from agentloop.errors import described

_logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class Lease(Generic[T]):
    """One object that a client holds."""

    id: str
    item: T
    idle_limit: float
    opened: float
    used: float
    users: int = 0

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self.users else time.monotonic() - self.used

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.opened


class Leases(Generic[T]):
    """At most `maximum` leased objects.

    `what` and `path` are their name and address in messages to the client. `flag` is the option that raises `maximum`.
    `close` ends an object. `sweep_seconds` is the pause between two searches for idle leases.
    """

    def __init__(
        self,
        what: str,
        path: str,
        close: Callable[[T], Awaitable[object]],
        maximum: int,
        flag: str,
        sweep_seconds: float = 1.0,
    ) -> None:
        self._what, self._path, self._close, self._maximum, self._flag = what, path, close, maximum, flag
        self._several = f"{what}es" if what.endswith("x") else f"{what}s"
        self._sweep_seconds = sweep_seconds
        self._leases: dict[str, Lease[T]] = {}
        self._opening = 0

    def __iter__(self) -> Iterator[Lease[T]]:
        return iter(list(self._leases.values()))

    def __len__(self) -> int:
        return len(self._leases)

    async def open(self, make: Callable[[], Awaitable[T]], idle_limit: float) -> Lease[T]:
        """Lease the result of `make`, until it is idle for `idle_limit` seconds. Raises `HTTPException` 429."""
        if len(self._leases) + self._opening >= self._maximum:
            raise HTTPException(
                429,
                f"{self._maximum} {self._several} are open, which is the maximum: close some "
                f"(DELETE {self._path}/{{id}}), or start the daemon with a larger {self._flag}.",
            )
        self._opening += 1
        try:
            item = await make()
        finally:
            self._opening -= 1
        now = time.monotonic()
        lease = Lease(secrets.token_urlsafe(18), item, idle_limit, opened=now, used=now)
        self._leases[lease.id] = lease
        return lease

    def find(self, id: str) -> Lease[T]:
        """Return a lease. Raises `HTTPException` 404."""
        if id not in self._leases:
            raise HTTPException(
                404,
                f"There is no {self._what} with this id: it was closed, ended or idle for too long. Open another: "
                f"POST {self._path}.",
            )
        return self._leases[id]

    @contextmanager
    def use(self, id: str) -> Iterator[T]:
        """Lend the object; it does not count as idle meanwhile. Raises the error of `find`."""
        lease = self.find(id)
        lease.users += 1
        try:
            yield lease.item
        finally:
            lease.users -= 1
            lease.used = time.monotonic()

    async def end(self, id: str) -> None:
        """Close a leased object. Raises the error of `find`."""
        lease = self.find(id)
        del self._leases[id]
        await self._close(lease.item)

    async def forget(self, id: str) -> None:
        """Close an object that has ended by itself, unless its lease has ended, too."""
        if id in self._leases:
            await self._end_quietly(self._leases[id])

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Close idle objects until the block ends, and then all others."""
        sweeping = asyncio.create_task(self._close_idle())
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.gather(*(self._end_quietly(lease) for lease in self))

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            idle = [lease for lease in self if lease.idle_seconds > lease.idle_limit]
            await asyncio.gather(*map(self._end_quietly, idle))

    async def _end_quietly(self, lease: Lease[T]) -> None:
        if self._leases.pop(lease.id, None) is not None:
            try:
                await self._close(lease.item)
            except Exception as error:  # of a provider, for example; the others are still to be closed
                _logger.warning("A %s could not be closed: %s", self._what, described(error))
