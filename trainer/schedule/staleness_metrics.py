"""Numbers of how stale a step was, and whether what is trained is what was played."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from agentloop.trainer.batch.train_batch import TrainBatch
    from agentloop.trainer.schedule.queue import TrajectoryQueue
    from agentloop.types.trajectory import Trajectory


def token_staleness(batch: TrainBatch, *, version: int) -> dict[str, float]:
    """Ages of the trained tokens in steps, the share of trajectories with tokens of several versions, and the share of
    the sampled tokens that are too old to be trained."""
    sampled = [sample.versions[sample.loss_mask] for sample in batch.samples if sample.loss_mask.any()]
    if not sampled:
        return {}
    ages = version - np.concatenate(sampled)
    return {
        "staleness/mean": float(ages.mean()),
        "staleness/max": float(ages.max()),
        "staleness/mixed": float(np.mean([versions.min() != versions.max() for versions in sampled])),
        "staleness/masked": batch.num_too_old / (batch.num_too_old + len(ages)),
    }


def queue_metrics(queue: TrajectoryQueue) -> dict[str, float]:
    """Groups that run and wait after a step, and where all episodes of the run have gone until then."""
    counts = {f"queue/{name}": float(count) for name, count in sorted(queue.counts.items())}
    return {
        "queue/groups_running": float(queue.num_running),
        "queue/groups_waiting": float(len(queue.admitted) - queue.num_running),
    } | counts


class LengthBias:
    """Whether training prefers short episodes: what was trained against what was admitted, since the process began.

    1 is no bias. While a run lasts, long episodes are trained later than short ones that began with them; what stays
    below 1 at its end was dropped. An aborted or running episode counts with the seconds since its group began, which
    is too little: the bias is larger than it looks then.
    """

    def __init__(self) -> None:
        self._trained = _Sums()
        self._dropped = _Sums()
        self._aborted = _Sums()

    def ended(self, trajectories: Iterable[Trajectory], *, is_trained: bool) -> None:
        """Episodes left the queue."""
        sums = self._trained if is_trained else self._dropped
        for trajectory in trajectories:
            sums.add(trajectory.metrics.get("seconds", 0.0), trajectory.num_sampled)

    def aborted(self, num: int, seconds: float) -> None:
        """So many episodes of a group left before their end."""
        for _ in range(num):
            self._aborted.add(seconds, 0)

    def metrics(self, queue: TrajectoryQueue, now: float) -> dict[str, float]:
        """`bias/tokens` compares the sampled tokens of episodes that ended, `time/bias_seconds` the seconds of all."""
        there = _Sums()
        running = _Sums()
        for each in queue.admitted:
            for trajectory in each.trajectories:
                there.add(trajectory.metrics.get("seconds", 0.0), trajectory.num_sampled)
            for _ in range(each.request.n if each.group is None else 0):
                running.add(now - each.started, 0)
        ended = self._trained + self._dropped + there
        admitted = ended + self._aborted + running
        if not self._trained.tokens or not admitted.seconds:
            return {}
        return {
            "bias/tokens": (self._trained.tokens / self._trained.num) / (ended.tokens / ended.num),
            "time/bias_seconds": (self._trained.seconds / self._trained.num) / (admitted.seconds / admitted.num),
        }


@dataclass(slots=True)
class _Sums:
    """Of episodes."""

    num: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def add(self, seconds: float, tokens: int) -> None:
        self.num += 1
        self.seconds += seconds
        self.tokens += tokens

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(self.num + other.num, self.seconds + other.seconds, self.tokens + other.tokens)
