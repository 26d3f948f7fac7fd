"""`Slot`: a place for a worker, and functions that choose among slots."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentloop.process.restart_budget import RestartBudget
from agentloop.trainer.workers.concurrency import ConcurrencyLimit
from agentloop.trainer.workers.ray.worker import RayWorker


@dataclass(slots=True, eq=False)
class Slot:
    """A place for a worker, which is replaced when it is lost."""

    budget: RestartBudget
    limit: ConcurrencyLimit
    worker: RayWorker | None = None
    """None while no worker is ready."""
    life: asyncio.Task[None] | None = None
    """The task that keeps a worker in the slot."""
    is_given_up: bool = False
    """Whether its workers were lost too often."""
    is_retired: bool = False
    """Whether its worker leaves without a successor."""

    @property
    def is_gone(self) -> bool:
        """Whether the slot will never play further requests."""
        return self.is_given_up or self.is_retired

    @property
    def takes_requests(self) -> bool:
        """Whether its worker can get a request now."""
        return self.worker is not None and not self.worker.is_draining and not self.is_gone

    @property
    def in_flight(self) -> int:
        """Episodes that its worker plays."""
        return self.worker.in_flight if self.worker else 0

    @property
    def room(self) -> int:
        """Number of episodes that may start; includes slots whose worker is starting, because requests wait for it."""
        if self.is_gone or (self.worker is not None and self.worker.is_draining):
            return 0
        return self.limit.room(self.in_flight)


def for_request(slots: Iterable[Slot], num_episodes: int) -> Slot | None:
    """Return the slot with most room for a request; a request that fits in no slot goes to an empty slot."""
    slot = max((slot for slot in slots if slot.takes_requests), key=lambda slot: slot.room, default=None)
    return slot if slot is not None and (slot.room >= num_episodes or not slot.in_flight) else None


def to_retire(slots: Sequence[Slot], count: int) -> Sequence[Slot]:
    """Return the slots to retire so that `count` remain: first those without a worker, then by fewest episodes."""
    by_loss = sorted(slots, key=lambda slot: (slot.worker is not None, slot.in_flight))
    return by_loss[: max(len(slots) - count, 0)]
