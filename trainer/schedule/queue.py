"""`TrajectoryQueue`: every admitted group until it leaves, trained or dropped, and the count of both.

admit -> runs -> finish -> waits -> take (trained)
            |                 |
            +--- drop --------+   with a reason
"""

from __future__ import annotations

import dataclasses
from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentloop.trainer.schedule.failures import is_failed
from agentloop.trainer.staleness.policy import QueuedGroup, StalenessPolicy, deadline_order
from agentloop.types.requests import RolloutRequest

if TYPE_CHECKING:
    from agentloop.types.requests import Group

EQUAL = "equal_rewards"
"""All rewards of the group are equal, and dynamic sampling is on."""
LATE = "late"
"""Older than max_staleness allows."""


@dataclass(slots=True, frozen=True)
class QueueState:
    """A queue at one moment; what it holds is never changed."""

    entries: tuple[tuple[RolloutRequest, int, int, Group | None], ...] = ()
    """Order, version, number, and the group where it is finished."""
    next_number: int = 0
    num_new: int = 0
    """Groups that were admitted since the step began."""
    counts: dict[str, int] = field(default_factory=dict)

    def without_failures(self) -> QueueState:
        """The same, with the groups that have a failed episode still to be played."""
        entries = tuple(
            (order, version, number, None if group and any(map(is_failed, group.trajectories)) else group)
            for order, version, number, group in self.entries
        )
        return dataclasses.replace(self, entries=entries)

    @property
    def groups(self) -> list[Group]:
        """The finished ones."""
        return [group for *_, group in self.entries if group is not None]

    def as_json(self) -> dict[str, Any]:
        """All but the groups' trajectories."""
        entries = [
            {
                "order": dataclasses.asdict(order),
                "version": version,
                "number": number,
                "episodes": None if group is None else len(group.trajectories),
            }
            for order, version, number, group in self.entries
        ]
        return {"entries": entries, "next_number": self.next_number, "num_new": self.num_new, "counts": self.counts}

    @classmethod
    def from_json(cls, data: dict[str, Any], groups: Sequence[Group]) -> QueueState:
        """The inverse of `as_json`, with the finished groups in their order."""
        finished = iter(groups)
        entries = tuple(
            (
                RolloutRequest(**entry["order"]),
                entry["version"],
                entry["number"],
                None if entry["episodes"] is None else next(finished),
            )
            for entry in data["entries"]
        )
        return cls(entries, data["next_number"], data["num_new"], data["counts"])


class TrajectoryQueue:
    """Admits and serves as the policy says. Counts episodes: `admitted`, `trained`, `dropped/<reason>`."""

    def __init__(self, policy: StalenessPolicy) -> None:
        self.policy = policy
        self.admitted: list[QueuedGroup] = []
        """What has not left, in the order of deadlines."""
        self.departed: list[QueuedGroup] = []
        """What left since the step began, in the order in which it did."""
        self.num_new = 0
        """Groups that were admitted since the step began."""
        self.counts: Counter[str] = Counter()
        self._next_number = 0

    @property
    def num_running(self) -> int:
        """Groups."""
        return sum(each.group is None for each in self.admitted)

    def admit(self, order: RolloutRequest, version: int) -> QueuedGroup:
        """A group begins at this version of the engine."""
        admitted = QueuedGroup(order, version, self._next_number)
        self._next_number += 1
        self.num_new += 1
        self.counts["admitted"] += order.n
        insort(self.admitted, admitted, key=deadline_order)
        return admitted

    def finish(self, admitted: QueuedGroup, group: Group, dropped: Counter[str]) -> None:
        """Its episodes ended; `dropped` counts those that are not in the group, by reason."""
        assert admitted.group is None
        assert len(group.trajectories) + dropped.total() == admitted.order.n, "no episode is lost"
        admitted.group = group
        for reason, count in dropped.items():
            self.counts[f"dropped/{reason}"] += count

    def drop(self, admitted: QueuedGroup, reason: str) -> None:
        """It leaves, and is not trained."""
        self._remove(admitted, f"dropped/{reason}")

    def select(self, learner: int, *, more_to_come: bool, engine_idles: bool = False) -> list[QueuedGroup] | None:
        """The groups of the next step, which leave; None while they are not there. See `StalenessPolicy.select`."""
        policy = self.policy
        selected = policy.select(self.admitted, learner=learner, more_to_come=more_to_come, engine_idles=engine_idles)
        for admitted in selected or ():
            assert policy.when_late == "mask" or admitted.version + policy.max_staleness >= learner, "in time"
            self._remove(admitted, "trained")
        return selected

    def late(self, learner: int) -> list[QueuedGroup]:
        """What may not be trained at this version any more."""
        return self.policy.late(self.admitted, learner=learner)

    def begin_step(self) -> list[QueuedGroup]:
        """The next step begins; returns what left since the one before did."""
        departed, self.departed, self.num_new = self.departed, [], 0
        return departed

    def state(self) -> QueueState:
        """For a checkpoint."""
        entries = tuple((each.order, each.version, each.number, each.group) for each in self.admitted)
        return QueueState(entries, self._next_number, self.num_new, dict(self.counts))

    def load(self, state: QueueState, *, version: int) -> list[QueuedGroup]:
        """Be what a state was; groups that ran then begin anew at this version of the engine, and are returned."""
        self.admitted = [
            QueuedGroup(order, version if group is None else found, number, group=group)
            for order, found, number, group in state.entries
        ]
        self.admitted.sort(key=deadline_order)
        self._next_number, self.num_new = state.next_number, state.num_new
        self.counts = Counter(state.counts)
        return [each for each in self.admitted if each.group is None]

    def check(self) -> None:
        """Every admitted episode is there, trained, or dropped with a reason."""
        there = sum(each.order.n if each.group is None else len(each.group.trajectories) for each in self.admitted)
        left = sum(count for name, count in self.counts.items() if name != "admitted")
        assert there + left == self.counts["admitted"], f"{there} are there; {self.counts}"

    def _remove(self, admitted: QueuedGroup, fate: str) -> None:
        self.admitted.remove(admitted)
        self.departed.append(admitted)
        self.counts[fate] += admitted.order.n if admitted.group is None else len(admitted.group.trajectories)
