"""Complete a group before all its episodes end, so that the slowest episode does not delay the others."""

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
"""Reason to drop an episode: the group was complete without it."""
DEADLINE = "deadline"
"""Reason to drop an episode: it still ran at the group's deadline."""


async def play_group(
    workers: Workers,
    request: RolloutRequest,
    *,
    needed: int,
    cut: CutConfig,
    on_trajectory: Callable[[Trajectory], None],
) -> tuple[Group, Counter[str]]:
    """Play a request until `needed` of its episodes succeeded, or until `cut` accepts fewer.

    Returns the group, in the order of its episodes, and reason -> number of episodes that are not in it. Failed
    episodes stay in the group, because the run must count them. Cancelling aborts the episodes.
    """
    if not cut.is_on:
        return await workers.play(request, on_trajectory), Counter()
    ended = _Ended(on_trajectory)
    playing = asyncio.ensure_future(workers.play(request, ended.add))
    playing.add_done_callback(ended.close)
    reason = SURPLUS
    try:
        try:
            async with asyncio.timeout(cut.deadline):
                await ended.wait_for_good(needed)
        except TimeoutError:
            reason = DEADLINE
            await ended.wait_for_good(cut.min_episodes or needed)
        if playing.done():
            playing.result()  # raises the error of the group
    finally:
        playing.cancel()
        await asyncio.wait([playing])
    return _complete(request, ended.trajectories, needed, reason)


def _complete(request: RolloutRequest, ended: list[Trajectory], needed: int, reason: str) -> tuple[Group, Counter[str]]:
    good = [trajectory for trajectory in ended if not is_failed(trajectory)]
    kept = good[:needed] + [trajectory for trajectory in ended if is_failed(trajectory)]
    dropped = Counter({SURPLUS: len(good[needed:])})
    dropped[reason] += request.n - len(ended)
    return Group(request, sorted(kept, key=lambda trajectory: trajectory.place)), +dropped


class _Ended:
    """Collects the trajectories of a group as they end."""

    def __init__(self, on_trajectory: Callable[[Trajectory], None]) -> None:
        self.trajectories: list[Trajectory] = []
        self._on_trajectory = on_trajectory
        self._is_closed = False
        self._changed = asyncio.Event()

    def add(self, trajectory: Trajectory) -> None:
        self.trajectories.append(trajectory)
        self._on_trajectory(trajectory)
        self._changed.set()

    def close(self, _: object) -> None:
        """Record that no further trajectory will come."""
        self._is_closed = True
        self._changed.set()

    async def wait_for_good(self, num: int) -> None:
        """Wait until `num` episodes have succeeded, or all have ended."""
        while not self._is_closed and sum(not is_failed(each) for each in self.trajectories) < num:
            self._changed.clear()
            await self._changed.wait()
