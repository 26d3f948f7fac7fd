"""`OpenRequest`: a request that is answered exactly once, even if workers die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from agentloop.engines.replay import Turn
from agentloop.errors import FailureKind
from agentloop.types.limits import StopReason
from agentloop.types.requests import Group, RolloutRequest
from agentloop.types.trajectory import Trajectory


class OpenRequest:
    """A request with its finished trajectories, and the known turns of the others."""

    def __init__(self, request: RolloutRequest, on_trajectory: Callable[[Trajectory], None] | None) -> None:
        self.request = request
        self.answer: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        self.num_lost = 0
        """Number of workers that died while they played it."""
        self._on_trajectory = on_trajectory
        self._ended: dict[int, Trajectory] = {}
        self._turns: dict[int, dict[str, list[Turn]]] = {}
        """Known turns by episode index and token stream."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Indices of the episodes that have not ended."""
        return tuple(place for place in self.request.played if place not in self._ended)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest finished trajectory."""
        return max((len(trajectory) for trajectory in self._ended.values()), default=0)

    @property
    def turns(self) -> dict[str, list[Turn]]:
        """Known turns of the episodes that have not ended, by token stream."""
        return {name: turns for streams in self._turns.values() for name, turns in streams.items()}

    def rest(self) -> RolloutRequest:
        """Return the request for the missing episodes."""
        return replace(self.request, places=self.missing)

    def remember(self, turn: Turn) -> None:
        """Record a turn of a running episode."""
        place = turn.episode.place
        if place not in self._ended:
            turns = self._turns.setdefault(place, {}).setdefault(turn.trajectory_id, [])
            turns[turn.index :] = [turn]

    def add(self, trajectory: Trajectory) -> None:
        """Record a finished trajectory; the last one answers the request."""
        place = trajectory.place
        if place in self._ended or self.answer.done():
            return
        self._ended[place] = trajectory
        self._turns.pop(place, None)
        if self._on_trajectory is not None:
            self._on_trajectory(trajectory)
        if not self.missing:
            trajectories = [self._ended[place] for place in sorted(self._ended)]
            self.answer.set_result(Group(self.request, trajectories))

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def give_up(self, cause: str) -> None:
        """Answer with failed trajectories for the missing episodes, which are counted while the run continues."""
        group_id = self.request.group_id
        for place in self.missing:
            failed = Trajectory(
                self.request.trajectory_id(place), group_id, place=place, stop_reason=StopReason.ENGINE_ERROR
            )
            failed.count(FailureKind.ENGINE)
            failed.error = (
                f"{self.num_lost} workers died while they played it; last cause: {cause}. If their memory sufficed, "
                "look for code of a tool, an environment or a reward that ends its process, such as os._exit."
            )
            self.add(failed)
