"""Create requests for workers, and play several of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from agentloop.errors import UserError
from agentloop.process.seeding import seed_of
from agentloop.trainer.workers.protocol import Workers
from agentloop.types.requests import RolloutRequest, Sampling, Split

if TYPE_CHECKING:
    from agentloop.types.requests import Group
    from agentloop.types.trajectory import Trajectory


def make_request(
    name: str, place: int, row: int, *, n: int, seed: int, split: Split = "train", sampling: Sampling | None = None
) -> RolloutRequest:
    """Return request number `place` of the requests with this `name`; its seed follows from `seed` and `place`."""
    group_seed = seed_of(seed, place) & 0x7FFFFFFF
    return RolloutRequest(group_id=f"{name}-{place}", row=row, n=n, seed=group_seed, split=split, sampling=sampling)


def make_requests(
    name: str,
    rows: Iterable[int],
    *,
    n: int,
    seed: int,
    split: Split = "train",
    sampling: Sampling | None = None,
) -> list[RolloutRequest]:
    """Return one request per row, numbered from 0."""
    return [
        make_request(name, place, row, n=n, seed=seed, split=split, sampling=sampling) for place, row in enumerate(rows)
    ]


async def play_all(
    workers: Workers, orders: Sequence[RolloutRequest], on_trajectory: Callable[[Trajectory], None] | None = None
) -> list[Group]:
    """Play all requests concurrently; return their groups in order. A `UserError` of an episode is raised unchanged."""
    try:
        async with asyncio.TaskGroup() as tasks:
            playing = [tasks.create_task(workers.play(order, on_trajectory)) for order in orders]
    except ExceptionGroup as group:
        raise user_error(group) from group
    return [task.result() for task in playing]


def user_error(group: ExceptionGroup) -> Exception:
    """Return the first `UserError`, or else the whole group."""
    return next((error for error in group.exceptions if isinstance(error, UserError)), group)
