"""Complete a group before all of its episodes are: the slowest one of many would hold up all others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentloop.config.staleness import CutConfig
from agentloop.trainer.schedule.failures import is_failed
from agentloop.types.requests import Group

if TYPE_CHECKING:
    from agentloop.trainer.workers.protocol import Workers
    from agentloop.types.requests import RolloutRequest
    from agentloop.types.trajectory import Trajectory

SURPLUS = "surplus"
"""The group was complete without the episode."""
DEADLINE = "deadline"
"""The episode still ran when the group's time was over."""


async def play_group(
    workers: Workers,
    order: RolloutRequest,
    *,
    wanted: int,
    cut: CutConfig,
    on_trajectory: Callable[[Trajectory], None],
) -> tuple[Group, Counter[str]]:
    """Play an order until `wanted` of its episodes ended well, or `cut` says that fewer are enough.

    Returns the group, in the order of its seeds, and the episodes that are not in it: reason -> count. Failed episodes
    stay in, since they have to be seen. Cancelling aborts the episodes.
    """
    if not cut.is_on:
        return await workers.play(order, on_trajectory), Counter()
    ended = _Ended(on_trajectory)
    playing = asyncio.ensure_future(workers.play(order, ended.add))
    playing.add_done_callback(ended.over)
    reason = SURPLUS
    try:
        try:
            async with asyncio.timeout(cut.deadline):
                await ended.well(wanted)
        except TimeoutError:
            reason = DEADLINE
            await ended.well(cut.min_episodes or wanted)
        if playing.done():
            playing.result()  # raises what went wrong
    finally:
        playing.cancel()
        await asyncio.wait([playing])
    return _complete(order, ended.trajectories, wanted, reason)


def _complete(order: RolloutRequest, ended: list[Trajectory], wanted: int, reason: str) -> tuple[Group, Counter[str]]:
    good = [trajectory for trajectory in ended if not is_failed(trajectory)]
    kept = good[:wanted] + [trajectory for trajectory in ended if is_failed(trajectory)]
    dropped = Counter({SURPLUS: len(good[wanted:])})
    dropped[reason] += order.n - len(ended)
    return Group(order.group_id, sorted(kept, key=lambda trajectory: trajectory.place)), +dropped


class _Ended:
    """The trajectories of a group as they end."""

    def __init__(self, on_trajectory: Callable[[Trajectory], None]) -> None:
        self.trajectories: list[Trajectory] = []
        self._on_trajectory = on_trajectory
        self._is_over = False
        self._changed = asyncio.Event()

    def add(self, trajectory: Trajectory) -> None:
        self.trajectories.append(trajectory)
        self._on_trajectory(trajectory)
        self._changed.set()

    def over(self, _: object) -> None:
        self._is_over = True
        self._changed.set()

    async def well(self, num: int) -> None:
        """Until so many ended well, or all ended."""
        while not self._is_over and sum(not is_failed(each) for each in self.trajectories) < num:
            self._changed.clear()
            await self._changed.wait()
