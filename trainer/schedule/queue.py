"""`TrajectoryQueue`: holds every admitted group until it is trained or dropped, and counts both.

admit -> plays -> finish -> waits -> select (trained)
           |                  |
           +------ drop ------+   with a reason
"""

from __future__ import annotations

import dataclasses
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentloop.trainer.schedule.failures import is_failed
from agentloop.trainer.staleness.policy import QueuedGroup, StalenessPolicy, deadline_order
from agentloop.types.requests import Group, RolloutRequest

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

LATE = "late"
"""Reason to drop a group: it is older than max_staleness allows."""


@dataclass(slots=True, frozen=True)
class QueueState:
    """Immutable snapshot of a queue, for a checkpoint."""

    entries: tuple[QueuedGroup, ...] = ()
    next_number: int = 0
    num_new: int = 0
    """Number of groups admitted since the step started."""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def trajectories(self) -> list[Trajectory]:
        """Trajectories of the finished groups, in the order of the entries."""
        return [trajectory for entry in self.entries for trajectory in entry.trajectories]

    def as_json(self) -> dict[str, Any]:
        """Return the state as JSON, without trajectories."""
        entries = [
            {
                "request": entry.request.as_json(),
                "version": entry.version,
                "number": entry.number,
                "episodes": None if entry.group is None else len(entry.group.trajectories),
            }
            for entry in self.entries
        ]
        return {"entries": entries, "next_number": self.next_number, "num_new": self.num_new, "counts": self.counts}

    @classmethod
    def from_json(cls, data: dict[str, Any], trajectories: Sequence[Trajectory]) -> QueueState:
        """Read the output of `as_json`, with its trajectories. Raises `ValueError` if their number differs."""
        left = iter(trajectories)
        entries = tuple(_entry(entry, left) for entry in data["entries"])
        if next(left, None) is not None:
            raise ValueError("there are more trajectories than episodes")
        return cls(entries, data["next_number"], data["num_new"], data["counts"])


def _entry(data: dict[str, Any], left: Iterator[Trajectory]) -> QueuedGroup:
    request, episodes = RolloutRequest.from_json(data["request"]), data["episodes"]
    group = None
    if episodes is not None:
        group = Group(request, [trajectory for _, trajectory in zip(range(episodes), left, strict=False)])
        if len(group.trajectories) != episodes:
            raise ValueError("there are fewer trajectories than episodes")
    return QueuedGroup(request, data["version"], data["number"], group=group)


def _has_failed(queued: QueuedGroup) -> bool:
    return any(map(is_failed, queued.trajectories))


def finished_groups(queued: Sequence[QueuedGroup]) -> list[Group]:
    """Return the groups that are finished, in the order of their admission."""
    return [each.group for each in sorted(queued, key=lambda each: each.number) if each.group is not None]


class TrajectoryQueue:
    """Admits and selects groups by the policy. Counts episodes: `admitted`, `trained`, `dropped/<reason>`."""

    def __init__(self, policy: StalenessPolicy) -> None:
        self.policy = policy
        self.version = 0
        """Policy version that the next step trains: the number of steps whose groups were selected."""
        self.admitted: list[QueuedGroup] = []
        """Groups that have not left, in the order of their deadlines."""
        self.departed: list[QueuedGroup] = []
        """Groups that left since the last selection, in order."""
        self.num_new = 0
        """Groups admitted since the last selection."""
        self.counts: Counter[str] = Counter()
        self._next_number = 0

    @property
    def num_running(self) -> int:
        """Number of groups in flight."""
        return sum(each.group is None for each in self.admitted)

    def admit(self, request: RolloutRequest, engine_version: int) -> QueuedGroup:
        """Add a group that starts at this version of the engine."""
        queued = QueuedGroup(request, engine_version, self._next_number)
        self._next_number += 1
        self.num_new += 1
        self.counts["admitted"] += request.n
        insort(self.admitted, queued, key=deadline_order)
        return queued

    def finish(self, queued: QueuedGroup, group: Group, dropped: Counter[str]) -> None:
        """Store a finished group; `dropped` counts episodes that are not in it, by reason."""
        assert queued.group is None
        assert len(group.trajectories) + dropped.total() == queued.request.n, "every episode is in the group or dropped"
        queued.group, queued.dropped = group, dropped
        for reason, count in dropped.items():
            self.counts[f"dropped/{reason}"] += count

    def drop(self, queued: QueuedGroup, reason: str) -> None:
        """Remove a group that is not trained."""
        self._remove(queued, f"dropped/{reason}")

    def select(self, *, more_to_come: bool, engine_idles: bool = False) -> list[QueuedGroup] | None:
        """Remove and return the groups of the next step; None until they are finished (`StalenessPolicy.select`).

        Increments the version: selected groups count as trained.
        """
        policy, version = self.policy, self.version
        selected = policy.select(self.admitted, learner=version, more_to_come=more_to_come, engine_idles=engine_idles)
        if selected is None:
            return None
        for queued in selected:
            assert policy.when_late == "mask" or queued.version + policy.max_staleness >= version, "in time"
            self._remove(queued, "trained")
        self.version += 1
        return selected

    def late(self) -> list[QueuedGroup]:
        """Return the groups that may not be trained any more."""
        return self.policy.late(self.admitted, learner=self.version)

    def take_departed(self) -> list[QueuedGroup]:
        """Start the next step; return the groups that left during the previous one."""
        departed, self.departed, self.num_new = self.departed, [], 0
        return departed

    def state(self) -> QueueState:
        """Return a snapshot for a checkpoint.

        Failures are never saved as finished work: a group with a failed episode is saved as a group to play again.
        """
        counts = self.counts.copy()
        entries = []
        for each in self.admitted:
            failed = _has_failed(each)
            if failed:  # all its episodes run again, including dropped ones
                counts.subtract({f"dropped/{reason}": count for reason, count in each.dropped.items()})
            entries.append(dataclasses.replace(each, group=None, dropped={}) if failed else dataclasses.replace(each))
        return QueueState(tuple(entries), self._next_number, self.num_new, dict(+counts))

    def played_again(self) -> list[QueuedGroup]:
        """Return the finished groups that `state` saves as groups to play again."""
        return list(filter(_has_failed, self.admitted))

    def load(self, state: QueueState, *, version: int) -> list[QueuedGroup]:
        """Restore a snapshot at this version of learner and engine; return the groups to play again."""
        self.version = version
        self.admitted = [
            dataclasses.replace(entry, version=version if entry.group is None else entry.version)
            for entry in state.entries
        ]
        self.admitted.sort(key=deadline_order)
        self._next_number, self.num_new = state.next_number, state.num_new
        self.counts = Counter(state.counts)
        return [each for each in self.admitted if each.group is None]

    def check(self) -> None:
        """Assert that every admitted episode is in the queue, was trained, or was dropped with a reason."""
        there = sum(each.num_episodes for each in self.admitted)
        left = sum(count for name, count in self.counts.items() if name != "admitted")
        assert there + left == self.counts["admitted"], f"{there} are in the queue; {self.counts}"

    def _remove(self, queued: QueuedGroup, fate: str) -> None:
        self.admitted.remove(queued)
        queued.fate = fate
        self.departed.append(queued)
        self.counts[fate] += queued.num_episodes
