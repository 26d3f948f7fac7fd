"""Metrics of the staleness of a step, and of the bias towards short episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from agentloop.trainer.batch.train_batch import TrainBatch
    from agentloop.trainer.schedule.queue import TrajectoryQueue
    from agentloop.types.trajectory import Trajectory


def token_staleness(batch: TrainBatch, *, version: int) -> dict[str, float]:
    """Return the ages of trained tokens in steps, and two fractions.

    `staleness/mixed` is the fraction of trajectories with tokens of several versions, `staleness/masked` the fraction
    of sampled tokens that are too old to be trained.
    """
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
    """Return the numbers of running and waiting groups, and the counts of all episodes of the run so far."""
    counts = {f"queue/{name}": float(count) for name, count in sorted(queue.counts.items())}
    return {
        "queue/groups_running": float(queue.num_running),
        "queue/groups_waiting": float(len(queue.admitted) - queue.num_running),
    } | counts


class LengthBias:
    """Compares trained with admitted episodes since the run started, to detect a bias towards short episodes.

    1 means no bias. During a run, long episodes are trained later than short ones that started at the same time; at its
    end a value below 1 is due to dropped episodes. Aborted and running episodes count with the seconds since their
    group started, which is an underestimate, so the true bias is larger.
    """

    def __init__(self) -> None:
        self._trained = _Sums()
        self._dropped = _Sums()
        self._aborted = _Sums()

    def state_dict(self, queue: TrajectoryQueue) -> dict[str, Any]:
        """Return the sums for a checkpoint, as plain data, without the episodes that a resumed run plays again."""
        aborted = self._aborted
        for each in queue.played_again():
            num = sum(each.dropped.values())
            aborted += _Sums(-num, -num * each.seconds)
        return {"trained": asdict(self._trained), "dropped": asdict(self._dropped), "aborted": asdict(aborted)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`. The checkpoints of earlier versions have an empty state."""
        self._trained, self._dropped, self._aborted = (
            _Sums(**state.get(name, {})) for name in ("trained", "dropped", "aborted")
        )

    def ended(self, trajectories: Iterable[Trajectory], *, is_trained: bool) -> None:
        """Count episodes that left the queue."""
        sums = self._trained if is_trained else self._dropped
        for trajectory in trajectories:
            sums.add(trajectory.metrics.get("seconds", 0.0), trajectory.num_sampled)

    def aborted(self, num: int, seconds: float) -> None:
        """Count `num` episodes of a group that left before their end."""
        for _ in range(num):
            self._aborted.add(seconds, 0)

    def metrics(self, queue: TrajectoryQueue, now: float) -> dict[str, float]:
        """Return `bias/tokens`, of the tokens of finished episodes, and `time/bias_seconds`, of the seconds of all."""
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
    """Totals of some episodes."""

    num: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def add(self, seconds: float, tokens: int) -> None:
        self.num += 1
        self.seconds += seconds
        self.tokens += tokens

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(self.num + other.num, self.seconds + other.seconds, self.tokens + other.tokens)
