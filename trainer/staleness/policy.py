"""`StalenessPolicy`: the one object that says when a group may begin, when it may be trained, and when weights change.

A policy version is a number of training steps. A token is as stale as the steps that were made since its weights: the
version that is trained less the version that sampled it. A group that was admitted at engine version e has no token
older than e, so it must be trained at version e + max_staleness at the latest: its deadline. One invariant keeps all of
them: with the admitted groups in the order of their deadlines and B groups a step, the one at position p (from 0) has

    deadline >= learner version + p // B

that is, each can be trained in time if steps take the earliest deadlines first. Three rules keep it:

admit   at most (max_staleness + 1 - lag) * B groups, less those that are there; lag is how far the learner is ahead of
        the engine. This is the capacity of AReaL (arXiv 2505.24298), counted from the engine's version, which makes it
        exact where weights arrive late.
select  the finished groups with the earliest deadlines, and only where what is left keeps the invariant; else wait for
        a straggler. Waiting costs nothing as long as there are other groups to play. When all that may be admitted has
        been and the engine has room, `when_late` says whether to wait on.
swap    the engine's weights as the mode says.

The four modes, those of verl's asynchronous trainer, are presets of the bound and of the swap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from agentloop.config.staleness import Mode, StalenessConfig, WhenLate
from agentloop.errors import UserError, nearest

if TYPE_CHECKING:
    from agentloop.types.requests import Group, RolloutRequest
    from agentloop.types.trajectory import Trajectory


class Swap(StrEnum):
    """When the engine takes the learner's weights."""

    WHEN_TRAINED = "when_trained"
    """When all that was admitted has been trained."""
    WHEN_IDLE = "when_idle"
    """When no episode runs; finished groups may wait for the learner."""
    IN_FLIGHT = "in_flight"
    """At once: episodes go on with the new weights, in the middle of a turn too."""


_PRESETS: dict[str, tuple[int, Swap]] = {
    "on_policy": (0, Swap.WHEN_TRAINED),
    "stream": (1, Swap.WHEN_TRAINED),
    "stale": (1, Swap.WHEN_IDLE),
    "partial": (1, Swap.IN_FLIGHT),
}
"""Mode -> default bound, and swap."""


@dataclass(slots=True, eq=False)
class QueuedGroup:
    """A group in the queue, from its admission until it leaves."""

    request: RolloutRequest
    version: int
    """The engine's version at the admission: no token of the group is older."""
    number: int
    """Position in the order of all admissions, from 0."""
    started: float = 0.0
    """Seconds on the event loop's clock."""
    group: Group | None = None
    """None while its episodes run."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """The finished group's trajectories; empty while its episodes run."""
        return self.group.trajectories if self.group else []

    @property
    def num_episodes(self) -> int:
        """Episodes that are in the group, or may come to be."""
        return self.request.n if self.group is None else len(self.group.trajectories)

    @property
    def newest(self) -> int:
        """Version of the newest token of a finished group, branches included."""
        assert self.group is not None
        streams = (stream for each in self.trajectories for stream in (each, *each.branches))
        return max((int(stream.versions.max(initial=-1)) for stream in streams), default=-1)


@dataclass(slots=True, frozen=True, kw_only=True)
class StalenessPolicy:
    """See the module. Pure: it knows versions and counts, and changes nothing."""

    max_staleness: int
    """Steps; 0 trains every token with the weights that sampled it."""
    swap: Swap
    groups_per_step: int
    window: int | None = None
    """Only so many of the oldest groups may be trained: the smaller, the less a step prefers short episodes.
    `groups_per_step` is first in, first out; None leaves it to the bound."""
    when_late: WhenLate = "wait"
    """What becomes of a straggler that would be too old if the next step were made without it, once the engine has no
    other group to play. wait: the learner waits, and so does the engine. drop: it is aborted. mask: it is trained when
    it has ended; its tokens that are too old by then carry no loss."""

    @classmethod
    def of(cls, config: StalenessConfig, groups_per_step: int) -> StalenessPolicy:
        """Make the policy of a config. Raises `UserError` if its settings contradict each other."""
        return cls.preset(
            config.mode,
            groups_per_step=groups_per_step,
            max_staleness=config.max_staleness,
            window=config.window,
            when_late=config.when_late,
        )

    @classmethod
    def preset(
        cls,
        mode: Mode | str,
        *,
        groups_per_step: int,
        max_staleness: int | None = None,
        window: int | None = None,
        when_late: WhenLate = "wait",
    ) -> StalenessPolicy:
        """The policy of a mode: `on_policy`, `stream`, `stale` or `partial`. Raises `UserError`."""
        if mode not in _PRESETS:
            raise UserError(f"There is no mode {mode!r}.{nearest(mode, _PRESETS)} Known: {', '.join(_PRESETS)}.")
        default, swap = _PRESETS[mode]
        bound = default if max_staleness is None else max_staleness
        if mode == "on_policy" and bound != 0:
            raise UserError(
                f"staleness.max_staleness is {bound}, and staleness.mode on_policy trains with the weights that "
                "sampled. Leave it out, or set staleness.mode=partial."
            )
        if mode != "on_policy" and bound < 1:
            raise UserError(
                f"staleness.max_staleness is {bound}: nothing overlaps then. Set it to 1 or more, or set "
                "staleness.mode=on_policy."
            )
        if window is not None and window < groups_per_step:
            raise UserError(
                f"staleness.window is {window}, but a step trains on {groups_per_step} groups "
                f"(algorithm.groups_per_step). Set it to {groups_per_step} or more, or leave it out."
            )
        if when_late == "mask" and swap is not Swap.IN_FLIGHT:
            raise UserError(
                f"staleness.when_late is mask, but in mode {mode} all tokens of a trajectory are of one age: nothing "
                "would be left. Set staleness.mode=partial, or staleness.when_late=drop."
            )
        return cls(max_staleness=bound, swap=swap, groups_per_step=groups_per_step, window=window, when_late=when_late)

    @property
    def overlaps(self) -> bool:
        """Episodes run while the learner trains."""
        return self.max_staleness > 0

    @property
    def admits_in_rounds(self) -> bool:
        """The next groups begin when no episode runs any more: waiting for room does not age them, since their weights
        do not change before they are trained."""
        return self.swap is Swap.WHEN_TRAINED

    def capacity(self, num_admitted: int, *, learner: int, engine: int) -> int:
        """Groups that may be admitted now, at these versions, without one of them getting too old."""
        return max((self.max_staleness + 1 - (learner - engine)) * self.groups_per_step - num_admitted, 0)

    def select(
        self, admitted: Sequence[QueuedGroup], *, learner: int, more_to_come: bool, engine_idles: bool = False
    ) -> list[QueuedGroup] | None:
        """The groups that the next step trains on; None: wait until more of them are finished.

        `admitted` is in the order of deadlines (`deadline_order`). A step has `groups_per_step` groups, fewer only
        where nothing runs and, as `more_to_come` says, nothing will be admitted before the step. `engine_idles`: there
        is room for groups that may not be admitted before a step was made.
        """
        ready = [each for each in admitted[: self.window] if each.group is not None][: self.groups_per_step]
        runs = any(each.group is None for each in admitted)
        if len(ready) < self.groups_per_step:
            return None if runs or more_to_come else ready
        if runs and not (engine_idles and self.when_late != "wait"):
            taken = set(map(id, ready))
            if not self._in_time([each for each in admitted if id(each) not in taken], learner):
                return None
        return ready

    def _in_time(self, left: Sequence[QueuedGroup], learner: int) -> bool:
        """After the step of this version; nothing is to be done for what is late already."""
        places = ((place // self.groups_per_step, each.version + self.max_staleness) for place, each in enumerate(left))
        return all(deadline >= learner + 1 + steps or deadline < learner for steps, deadline in places)

    def late(self, admitted: Sequence[QueuedGroup], *, learner: int) -> list[QueuedGroup]:
        """Those that may not be trained any more: stragglers with `when_late` drop, what has no token left with mask,
        otherwise only what over-sampling left."""
        late = [each for each in admitted if each.version + self.max_staleness < learner]
        if self.when_late != "mask":
            return late
        return [each for each in late if each.group is not None and each.newest + self.max_staleness < learner]

    def may_swap(
        self, admitted: Sequence[QueuedGroup], *, tail_seconds: float = 0.0, step_seconds: float = 0.0
    ) -> bool:
        """The engine should take new weights now.

        WHEN_IDLE: if groups for j steps wait, either a smaller round of max_staleness + 1 - j steps begins at once, or
        they are trained first while the engine rests, and the round is whole. Every round ends with a tail in which
        the engine is nearly empty. `tail_seconds` is how long the last one was, `step_seconds` that of a training
        step: what is lost for each step of the round decides.
        """
        match self.swap:
            case Swap.WHEN_TRAINED:
                return not admitted
            case Swap.WHEN_IDLE:
                if any(each.group is None for each in admitted):
                    return False
                steps, whole = len(admitted) // self.groups_per_step, self.max_staleness + 1
                return tail_seconds * whole <= (tail_seconds + steps * step_seconds) * (whole - steps)
            case Swap.IN_FLIGHT:
                return True

    def round_size(self, missing: int, oversampling: float) -> int:
        """Groups that begin together, where some of them are expected to be of no use. Where groups are replaced one by
        one as they end there is no round to save."""
        return math.ceil(missing * oversampling) if self.admits_in_rounds else missing


def deadline_order(admitted: QueuedGroup) -> tuple[int, int]:
    """Sort key: what must be trained first, by age, then by admission."""
    return admitted.version, admitted.number
