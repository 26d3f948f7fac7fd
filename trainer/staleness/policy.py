"""`StalenessPolicy` decides when a group may start, when it may be trained, and when engines take new weights.

A policy version is a number of training steps. The staleness of a token is the version in training minus the version
that sampled it. A group admitted at engine version e has no token older than e. So its deadline, the last version at
which it may be trained, is e + max_staleness. One invariant guarantees all deadlines. Sort the admitted groups by
deadline and train B groups per step; then the group at position p (from 0) must satisfy

    deadline >= learner version + p // B

Then each group is trained in time if steps take the earliest deadlines first. Three rules preserve the invariant:

admit   at most (max_staleness + 1 - lag) * B groups, less those in the queue; lag is the learner's version less the
        engine's. This is the capacity of AReaL (arXiv 2505.24298), counted from the engine's version, which makes it
        exact when weights arrive late.
select  the finished groups with the earliest deadlines, if the rest then keeps the invariant; else wait for a
        straggler. Waiting costs nothing while there are other groups to play. When no more groups may be admitted and
        the engine has room, `when_late` decides whether to keep waiting.
swap    the engine's weights at the time that the mode sets.

The four modes are those of verl's asynchronous trainer. Each is a preset of bound and swap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from agentloop.config.staleness import Mode, StalenessConfig, WhenLate
from agentloop.errors import UserError, nearest
from agentloop.types.trajectory import NO_VERSION

if TYPE_CHECKING:
    from agentloop.types.requests import Group, RolloutRequest
    from agentloop.types.trajectory import Trajectory


class Swap(StrEnum):
    """When the engine takes the learner's weights."""

    WHEN_TRAINED = "when_trained"
    """When all admitted groups have been trained."""
    WHEN_IDLE = "when_idle"
    """When no episode runs; finished groups may wait for the learner."""
    IN_FLIGHT = "in_flight"
    """Immediately: episodes continue with the new weights, even in the middle of a turn."""


_PRESETS: dict[str, tuple[int, Swap]] = {
    "on_policy": (0, Swap.WHEN_TRAINED),
    "stream": (1, Swap.WHEN_TRAINED),
    "stale": (1, Swap.WHEN_IDLE),
    "partial": (1, Swap.IN_FLIGHT),
}
"""Mode -> default bound and swap."""


@dataclass(slots=True, eq=False)
class QueuedGroup:
    """A group in the queue, from its admission until it leaves."""

    request: RolloutRequest
    version: int
    """Engine version at admission; no token of the group is older."""
    number: int
    """Index in the order of all admissions."""
    started: float = 0.0
    """Time of the admission, in seconds of the event loop's clock."""
    group: Group | None = None
    """None while its episodes run."""
    fate: str = ""
    """Outcome when it leaves the queue: `trained`, or `dropped/<reason>`."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of episodes that are not in the finished group."""
    seconds: float = 0.0
    """Seconds from its start until it was finished."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """Trajectories of the finished group; empty while its episodes run."""
        return self.group.trajectories if self.group else []

    @property
    def num_episodes(self) -> int:
        """Number of episodes of the group; while it runs, the requested number."""
        return self.request.n if self.group is None else len(self.group.trajectories)

    @property
    def newest(self) -> int:
        """Version of the newest token of a finished group, branches included."""
        assert self.group is not None
        return max(map(newest_version, self.trajectories), default=NO_VERSION)


def newest_version(episode: Trajectory) -> int:
    """Return the version of the newest token of an episode, branches included; `NO_VERSION` if none was sampled."""
    return max(int(stream.versions.max(initial=NO_VERSION)) for stream in (episode, *episode.branches))


@dataclass(slots=True, frozen=True, kw_only=True)
class StalenessPolicy:
    """The rules in the module's docstring, as pure functions of versions and counts."""

    max_staleness: int
    """Bound on the staleness in steps; 0: every token trains the weights that sampled it."""
    swap: Swap
    groups_per_step: int
    window: int | None = None
    """Number of oldest groups that may be trained; smaller values reduce the bias towards short episodes.
    `groups_per_step` is first in, first out; None applies only the bound."""
    when_late: WhenLate = "wait"
    """Handling of a straggler that the next step would make too old, once the engine has no other group to play. wait:
    learner and engine wait for it. drop: abort it. mask: train it when it has ended, without loss on tokens that are
    then too old."""

    @classmethod
    def of(cls, config: StalenessConfig, groups_per_step: int) -> StalenessPolicy:
        """Return the policy of a config. Raises `UserError` if its settings contradict each other."""
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
        """Return the policy of a mode: `on_policy`, `stream`, `stale` or `partial`.

        Raises `UserError` if the settings contradict each other.
        """
        if mode not in _PRESETS:
            raise UserError(f"There is no mode {mode!r}.{nearest(mode, _PRESETS)} Known: {', '.join(_PRESETS)}.")
        default, swap = _PRESETS[mode]
        bound = default if max_staleness is None else max_staleness
        if mode == "on_policy" and bound != 0:
            raise UserError(
                f"staleness.max_staleness is {bound}, but staleness.mode on_policy trains with the weights that "
                "sampled. Remove it, or set staleness.mode=partial."
            )
        if mode != "on_policy" and bound < 1:
            raise UserError(
                f"staleness.max_staleness is {bound}, so nothing could overlap. Set it to 1 or more, or set "
                "staleness.mode=on_policy."
            )
        if window is not None and window < groups_per_step:
            raise UserError(
                f"staleness.window is {window}, but a step trains on {groups_per_step} groups "
                f"(algorithm.groups_per_step). Set it to {groups_per_step} or more, or remove it."
            )
        if when_late == "mask" and swap is not Swap.IN_FLIGHT:
            raise UserError(
                f"staleness.when_late is mask, but in mode {mode} all tokens of a trajectory have one age, so none "
                "would be left. Set staleness.mode=partial, or staleness.when_late=drop."
            )
        return cls(max_staleness=bound, swap=swap, groups_per_step=groups_per_step, window=window, when_late=when_late)

    @property
    def overlaps(self) -> bool:
        """Whether episodes run while the learner trains."""
        return self.max_staleness > 0

    @property
    def admits_in_rounds(self) -> bool:
        """Whether the next groups start only after all episodes have ended.

        Waiting for room does not age such groups, because weights do not change before they are trained.
        """
        return self.swap is Swap.WHEN_TRAINED

    def capacity(self, num_admitted: int, *, learner: int, engine: int) -> int:
        """Return the number of groups that can be admitted at these versions without making any group too old."""
        return max((self.max_staleness + 1 - (learner - engine)) * self.groups_per_step - num_admitted, 0)

    def select(
        self, admitted: Sequence[QueuedGroup], *, learner: int, more_to_come: bool, engine_idles: bool = False
    ) -> list[QueuedGroup] | None:
        """Return the groups that the next step trains on; None: wait until more groups are finished.

        `admitted` is sorted by `deadline_order`. A step has `groups_per_step` groups. It has fewer only if nothing runs
        and nothing will be admitted before the step (`more_to_come` is False). `engine_idles` means that the engine has
        room for groups which may be admitted only after a step.
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
        """Return whether these groups can meet their deadlines after this version's step; late groups are ignored."""
        places = ((place // self.groups_per_step, each.version + self.max_staleness) for place, each in enumerate(left))
        return all(deadline >= learner + 1 + steps or deadline < learner for steps, deadline in places)

    def late(self, admitted: Sequence[QueuedGroup], *, learner: int) -> list[QueuedGroup]:
        """Return the groups that must not be trained any more.

        With `when_late` drop these are stragglers, with mask groups without a remaining token, and otherwise only
        surplus groups from over-sampling.
        """
        late = [each for each in admitted if each.version + self.max_staleness < learner]
        if self.when_late != "mask":
            return late
        return [each for each in late if each.group is not None and each.newest + self.max_staleness < learner]

    def is_masked(self, episode: Trajectory, *, learner: int) -> bool:
        """Return whether all sampled tokens of an episode are too old to be trained, as `when_late` mask allows."""
        return self.when_late == "mask" and NO_VERSION < newest_version(episode) < learner - self.max_staleness

    def may_swap(
        self, admitted: Sequence[QueuedGroup], *, tail_seconds: float = 0.0, step_seconds: float = 0.0
    ) -> bool:
        """Return whether the engine should take new weights now.

        WHEN_IDLE has a choice if finished groups for j steps wait. Either a smaller round of max_staleness + 1 - j
        steps starts immediately, or the engine idles until they are trained and then plays a full round. Every round
        ends with a tail in which the engine is almost empty. `tail_seconds` is the length of the last tail,
        `step_seconds` the length of a training step. The choice with less idle time per step of the round is taken.
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
        """Return the number of groups to start together, so that `missing` of them are expected to be useful.

        Without rounds, groups are replaced one by one as they end, so nothing needs over-sampling.
        """
        return math.ceil(missing * oversampling) if self.admits_in_rounds else missing


def deadline_order(admitted: QueuedGroup) -> tuple[int, int]:
    """Return the sort key of deadlines: engine version, then order of admission."""
    return admitted.version, admitted.number
