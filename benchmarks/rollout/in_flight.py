"""Run work and episodes with a fixed number in flight, for benchmarks of throughput."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentloop.trainer.workers.protocol import Workers
from agentloop.trainer.workers.requests import make_requests
from agentloop.types.trajectory import Trajectory

_numbers = itertools.count()


async def window(jobs: Sequence[Callable[[], Awaitable[Any]]], in_flight: int) -> list[Any]:
    """Await all of them, a fixed number at a time."""
    room = asyncio.Semaphore(in_flight)

    async def one(job: Callable[[], Awaitable[Any]]) -> Any:
        async with room:
            return await job()

    return await asyncio.gather(*map(one, jobs))


async def episodes_of(workers: Workers, rows: Sequence[int], in_flight: int) -> list[Trajectory]:
    """Return the episodes of these rows. None may fail."""
    orders = make_requests(f"x{next(_numbers)}", rows, n=1, seed=next(_numbers))
    groups = await window([lambda order=order: workers.play(order) for order in orders], in_flight)
    episodes = [episode for group in groups for episode in group.trajectories]
    assert not any(episode.error for episode in episodes), episodes[0].error
    return episodes


async def played(workers: Workers, rows: Sequence[int], in_flight: int) -> int:
    """Return the tokens sampled by episodes of these rows."""
    return sum(int(episode.loss_mask.sum()) for episode in await episodes_of(workers, rows, in_flight))
