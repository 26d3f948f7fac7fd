"""Whose turn it is on GPUs that the learner and the engines share: one sleeps while the other is awake.

    rollout          train                  publish                       rollout
    engines awake    engines asleep         engines have their weights    engines awake
    learner asleep   learner awake          learner awake                 learner asleep

New weights reach engines that sleep: memory for their caches they get when the learner is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from agentloop.trainer.schedule.observers import Stage

if TYPE_CHECKING:
    from agentloop.trainer.learner.protocol import Learner
    from agentloop.trainer.workers.protocol import Workers


class GpuTimeSharing:
    """Begins with the learner's turn, the engines being asleep. Where they do not `alternate`, both are always awake
    and nothing here does anything."""

    def __init__(
        self,
        workers: Workers,
        learner: Learner,
        *,
        alternate: bool,
        stage: Callable[[Stage], AbstractContextManager[None]],
    ) -> None:
        self.alternate = alternate
        self._workers = workers
        self._learner = learner
        self._stage = stage
        self._is_learners = True
        self._metrics: dict[str, float] = {}

    async def to_learner(self) -> None:
        """Engines sleep, then the learner wakes. Returns at once where it is its turn."""
        if self.alternate and not self._is_learners:
            with self._stage(Stage.SLEEP):
                await self._workers.sleep()
                self._note("asleep")
                await asyncio.to_thread(self._learner.wake)
            self._is_learners = True

    async def to_engines(self) -> None:
        """The learner sleeps, then the engines wake. Returns at once where it is their turn."""
        if self.alternate and self._is_learners:
            with self._stage(Stage.WAKE):
                await asyncio.to_thread(self._learner.sleep)
                await self._workers.wake()
                self._note("rollout")
            self._is_learners = False

    def take_metrics(self) -> dict[str, float]:
        """Since they were taken last, of the learner's first GPU: what all processes together have of it."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def _note(self, when: str) -> None:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            self._metrics[f"memory/{when}_gib"] = (total - free) / 2**30
