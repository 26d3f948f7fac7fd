"""`OpenRequest`: an order on its way through workers that may die, answered exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from agentloop.engines.replay import Turn
from agentloop.errors import FailureKind
from agentloop.types.limits import StopReason
from agentloop.types.requests import Group, RolloutRequest
from agentloop.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentloop.trainer.workers.ray.worker import RayWorker


class OpenRequest:
    """What is known of an order: the trajectories that ended, and the turns of those that did not."""

    def __init__(self, order: RolloutRequest, on_trajectory: Callable[[Trajectory], None] | None) -> None:
        self.order = order
        self.answer: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        self.worker: RayWorker | None = None
        """That plays it now."""
        self.num_lost = 0
        """Workers that died with it."""
        self._on_trajectory = on_trajectory
        self._ended: dict[int, Trajectory] = {}
        self._turns: dict[str, list[Turn]] = {}

    @property
    def missing(self) -> tuple[int, ...]:
        """Places of the episodes that did not end."""
        asked = range(self.order.n) if self.order.places is None else self.order.places
        return tuple(k for k in asked if k not in self._ended)

    @property
    def longest(self) -> int:
        """Tokens of the longest trajectory that ended."""
        return max((len(trajectory) for trajectory in self._ended.values()), default=0)

    @property
    def turns(self) -> dict[str, list[Turn]]:
        """By trajectory, of the episodes that did not end."""
        return self._turns

    def rest(self) -> RolloutRequest:
        """What is left to be played."""
        return replace(self.order, places=self.missing)

    def remember(self, turn: Turn) -> None:
        """A turn of an episode that runs."""
        if _place(turn.trajectory_id) not in self._ended:
            turns = self._turns.setdefault(turn.trajectory_id, [])
            turns[turn.place :] = [turn]

    def add(self, trajectory: Trajectory) -> None:
        """An episode ended; the last one answers the order."""
        place = _place(trajectory.trajectory_id)
        if place in self._ended or self.answer.done():
            return
        self._ended[place] = trajectory
        self._turns.pop(trajectory.trajectory_id, None)
        if self._on_trajectory is not None:
            self._on_trajectory(trajectory)
        if not self.missing:
            trajectories = [self._ended[k] for k in sorted(self._ended)]
            self.answer.set_result(Group(self.order.group_id, trajectories))

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def give_up(self, cause: str) -> None:
        """Answer with failed trajectories for what is missing: it is counted, and the run goes on."""
        for place in self.missing:
            name = f"{self.order.group_id}-{place}"
            failed = Trajectory(name, self.order.group_id, stop_reason=StopReason.ENGINE_ERROR)
            failed.count(FailureKind.ENGINE)
            failed.error = f"{self.num_lost} workers ended while they played it; the last one: {cause}"
            self.add(failed)


def _place(trajectory_id: str) -> int:
    return int(trajectory_id.rpartition("-")[2])
