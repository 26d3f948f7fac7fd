"""`Slot`: a place for a worker, and which of the places is to do what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentloop.process.restart_budget import RestartBudget
from agentloop.trainer.workers.concurrency import ConcurrencyLimit
from agentloop.trainer.workers.ray.worker import RayWorker


@dataclass(slots=True, eq=False)
class Slot:
    """Its worker is replaced when it is lost."""

    budget: RestartBudget
    limit: ConcurrencyLimit
    worker: RayWorker | None = None
    """None while there is none that is ready."""
    life: asyncio.Task[None] | None = None
    """Keeps a worker in it."""
    is_given_up: bool = False
    """Its workers were lost too often."""
    is_retired: bool = False
    """It is not wanted any more: its worker leaves, and none follows."""

    @property
    def is_gone(self) -> bool:
        """Nothing new is played here."""
        return self.is_given_up or self.is_retired

    @property
    def takes_orders(self) -> bool:
        """Now."""
        return self.worker is not None and not self.worker.is_draining and not self.is_gone

    @property
    def in_flight(self) -> int:
        """Episodes, and trajectories of others."""
        return self.worker.in_flight + self.worker.guests if self.worker else 0

    @property
    def room(self) -> int:
        """Episodes. One whose worker is being started counts: orders wait for it."""
        if self.is_gone or (self.worker is not None and self.worker.is_draining):
            return 0
        return self.limit.room(self.in_flight)


def for_order(slots: Iterable[Slot], num_episodes: int) -> Slot | None:
    """Who plays an order: the one with most room. One that is larger than any room goes where nothing else runs."""
    slot = max((slot for slot in slots if slot.takes_orders), key=lambda slot: slot.room, default=None)
    return slot if slot is not None and (slot.room >= num_episodes or not slot.in_flight) else None


def helpers(slots: Iterable[Slot], helped: RayWorker) -> dict[Any, int]:
    """Actors that sample the turns of a worker, and for how many of its trajectories each has room."""
    return {
        slot.worker.actor: slot.room
        for slot in slots
        if slot.takes_orders and slot.worker is not None and slot.worker is not helped
    }


def to_retire(slots: Sequence[Slot], count: int) -> Sequence[Slot]:
    """Whose workers leave so that `count` stay. Least is lost by such without a worker, then by those with the fewest
    episodes."""
    by_loss = sorted(slots, key=lambda slot: (slot.worker is not None, slot.in_flight))
    return by_loss[: max(len(slots) - count, 0)]
