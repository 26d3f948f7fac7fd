"""`EarlyGradients`: what of the next step is certain is computed while the rest of its groups play.

A step is over a moment after its last episode then, instead of the time that the whole batch takes. Which groups a step
has does not change by that, nor what is learned, but for rounding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentloop.trainer.batch.train_batch import TrainBatch

if TYPE_CHECKING:
    from agentloop.trainer.learner.protocol import Learner
    from agentloop.trainer.staleness.policy import QueuedGroup
    from agentloop.types.requests import Group


_WORTH_A_PASS = 0.25
"""Part of a full micro-batch for each rank: with less, ranks spend their time on parameters and gradients. What is left
for the end of the step is less than that, and the group that was waited for."""


class EarlyGradients:
    """Of one step after the other."""

    def __init__(self, learner: Learner, make_batch: Callable[[Sequence[Group]], TrainBatch], num_tokens: int) -> None:
        """`num_tokens` are a full micro-batch for each rank: no more are computed at a time, since new weights, and new
        rounds of episodes, wait meanwhile."""
        self._learner = learner
        self._make_batch = make_batch
        self._num_tokens = num_tokens
        self._groups: list[Group] = []
        self._batches: list[TrainBatch] = []
        self._seconds = 0.0

    async def compute(self, certain: Sequence[QueuedGroup]) -> bool:
        """Add the gradients of some groups of the next step; False where too few of them are left."""
        groups = self._next([each.group for each in certain if each.group is not None])
        if not groups:
            return False
        started = _now()
        batch = await asyncio.to_thread(self._make_batch, groups)
        await asyncio.to_thread(self._learner.accumulate, batch)
        self._groups += groups
        self._batches.append(batch)
        self._seconds += _now() - started
        return True

    def take(self, groups: Sequence[Group]) -> tuple[TrainBatch, list[Group], dict[str, float]]:
        """Of the groups of a step: the batch of those that are computed, the others, and metrics."""
        done = set(map(id, self._groups))
        assert done <= set(map(id, groups)), "what was certain is in the step"
        left = [group for group in groups if id(group) not in done]
        batch = TrainBatch.joined(self._batches)
        metrics = {"time/early": self._seconds}
        self._groups, self._batches, self._seconds = [], [], 0.0
        return batch, left, metrics

    def _next(self, certain: Sequence[Group]) -> list[Group]:
        done = set(map(id, self._groups))
        groups: list[Group] = []
        num_tokens = 0
        for group in certain:
            if id(group) not in done and num_tokens < self._num_tokens:
                groups.append(group)
                num_tokens += sum(len(stream) for each in group.trajectories for stream in (each, *each.branches))
        return groups if num_tokens >= _WORTH_A_PASS * self._num_tokens else []


def _now() -> float:
    return asyncio.get_running_loop().time()
