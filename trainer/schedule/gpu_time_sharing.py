"""`GpuTimeSharing`: learner and engines take turns on shared GPUs; one sleeps while the other works.

    rollout          train                  publish                       rollout
    engines awake    engines asleep         engines have their weights    engines awake
    learner asleep   learner awake          learner awake                 learner asleep

New weights are sent to sleeping engines, which allocate their caches when the learner sleeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.process.threads import LEARNER
from agentloop.trainer.schedule.observers import Stage

if TYPE_CHECKING:
    from agentloop.trainer.learner.protocol import Learner
    from agentloop.trainer.schedule.observers import StageTimer
    from agentloop.trainer.workers.protocol import Workers


class GpuTimeSharing:
    """Starts with the learner's turn, with engines asleep.

    If they do not `alternate`, both are always awake and all methods return at once.
    """

    def __init__(self, workers: Workers, learner: Learner, timer: StageTimer, *, alternate: bool) -> None:
        self.alternate = alternate
        self._workers = workers
        self._learner = learner
        self._timer = timer
        self._is_learners = True
        self._metrics: dict[str, float] = {}

    async def to_learner(self) -> None:
        """Put the engines to sleep, then wake the learner. Return at once if it is the learner's turn."""
        if self.alternate and not self._is_learners:
            with self._timer.stage(Stage.SLEEP):
                await self._workers.sleep()
                self._note("asleep")
                await LEARNER.run(self._learner.wake)
            self._is_learners = True

    async def to_engines(self) -> None:
        """Put the learner to sleep, then wake the engines. Return at once if it is the engines' turn."""
        if self.alternate and self._is_learners:
            with self._timer.stage(Stage.WAKE):
                await LEARNER.run(self._learner.sleep)
                await self._workers.wake()
                self._note("rollout")
            self._is_learners = False

    def take_metrics(self) -> dict[str, float]:
        """Return the memory that all processes used on the learner's first GPU since the last call."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def _note(self, when: str) -> None:
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            self._metrics[f"memory/{when}_gib"] = (total - free) / 2**30
