"""The bound holds for any sequence of events, nothing waits forever, and every group leaves exactly once."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import UserError
from agentloop.trainer.schedule.queue import LATE, TrajectoryQueue
from agentloop.trainer.staleness import StalenessPolicy, Swap
from agentloop.trainer.staleness.policy import QueuedGroup
from agentloop.types.requests import Group, RolloutRequest
from agentloop.types.trajectory import SegmentKind, Trajectory


def _request(number):
    return RolloutRequest(group_id=str(number), row=0, n=2, seed=0)


def _group(version=0):
    """Its last tokens are of this version."""
    trajectories = [Trajectory(reward=1.0), Trajectory(reward=0.0)]
    trajectories[0].append(SegmentKind.SAMPLED, [1], logprobs=[0.0], versions=[version])
    return Group(_request(0), trajectories)


def test_the_newest_token_of_a_group_may_be_in_a_branch():
    group = _group(version=1)
    group.trajectories[1].branches.append(_group(version=3).trajectories[0])
    assert QueuedGroup(_request(0), version=1, number=0, group=group).newest == 3


class World:
    """A run whose episodes end in the order of `choices`. It records the ages of trained tokens."""

    def __init__(self, policy, choices):
        self.policy = policy
        self.queue = TrajectoryQueue(policy)
        self.choices = choices
        self.engine = 0
        self.number = 0
        self.trained = []
        self.ages = []
        """Age of the oldest trained token, or of the youngest if old tokens are masked, for each group."""

    def step(self):
        """Run until the next training step."""
        while True:
            if self.engine < self.queue.version and self.policy.may_swap(self.queue.admitted):
                self.engine = self.queue.version
            free = self.policy.capacity(len(self.queue.admitted), learner=self.queue.version, engine=self.engine)
            for _ in range(free):
                self.queue.admit(_request(self.number), self.engine)
                self.number += 1
            idles = self.choices() % 2 == 0
            selected = self.queue.select(more_to_come=True, engine_idles=idles)
            if selected is not None:
                break
            running = [each for each in self.queue.admitted if each.group is None]
            assert running, "waits for something that never ends"
            self._finish(running[self.choices() % len(running)])
        for late in self.queue.late():
            self.queue.drop(late, LATE)
        self.trained += [each.number for each in selected]
        masks = self.policy.when_late == "mask"
        self.ages += [self.queue.version - 1 - (each.newest if masks else each.version) for each in selected]
        for each in [each for each in self.queue.admitted if each.group is None]:
            if self.choices() % 3 == 0:  # ends while the learner trains
                self._finish(each)
        self.queue.check()

    def _finish(self, admitted):
        self.queue.finish(admitted, _group(self.engine), Counter())


@st.composite
def policies(draw):
    mode = draw(st.sampled_from(["on_policy", "stream", "stale", "partial"]))
    groups = draw(st.integers(1, 4))
    return StalenessPolicy.preset(
        mode,
        groups_per_step=groups,
        max_staleness=0 if mode == "on_policy" else draw(st.integers(1, 4)),
        window=draw(st.one_of(st.none(), st.integers(groups, 3 * groups))),
        when_late=draw(st.sampled_from(["wait", "drop", "mask"] if mode == "partial" else ["wait", "drop"])),
    )


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(policies(), st.randoms(use_true_random=False))
def test_no_group_is_older_than_the_bound_and_each_is_trained_once(policy, rng):
    world = World(policy, lambda: rng.randrange(1 << 30))
    for _ in range(12):
        world.step()
    assert max(world.ages) <= policy.max_staleness
    assert len(world.trained) == len(set(world.trained)) == 12 * policy.groups_per_step
    if policy.when_late == "wait":
        assert world.queue.counts["dropped/late"] == 0
        # The group admitted first cannot be passed over forever.
        assert set(range(max(world.number - (policy.max_staleness + 1) * policy.groups_per_step, 0))) <= set(
            world.trained
        )


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_window_of_one_step_is_first_in_first_out(groups, bound, rng):
    policy = StalenessPolicy.preset("partial", groups_per_step=groups, max_staleness=bound, window=groups)
    world = World(policy, lambda: rng.randrange(1 << 30))
    for _ in range(6):
        world.step()
    assert world.trained == sorted(world.trained)


def test_the_presets():
    made = {
        mode: StalenessPolicy.preset(mode, groups_per_step=4) for mode in ("on_policy", "stream", "stale", "partial")
    }
    assert {mode: (policy.max_staleness, policy.swap) for mode, policy in made.items()} == {
        "on_policy": (0, Swap.WHEN_TRAINED),
        "stream": (1, Swap.WHEN_TRAINED),
        "stale": (1, Swap.WHEN_IDLE),
        "partial": (1, Swap.IN_FLIGHT),
    }


def test_a_straggler_is_waited_for_only_when_it_would_get_too_old():
    queue = TrajectoryQueue(StalenessPolicy.preset("partial", groups_per_step=1, max_staleness=1))
    slow, quick = queue.admit(_request(0), 0), queue.admit(_request(1), 0)
    quick.group = _group()
    assert queue.select(more_to_come=True) == [quick]
    third = queue.admit(_request(2), 1)
    third.group = _group()
    assert queue.select(more_to_come=True) is None
    slow.group = _group()
    assert queue.select(more_to_come=True) == [slow]


def _with_a_straggler(when_late):
    """Two steps were made without the group that was admitted first, as long as nothing else could be played."""
    policy = StalenessPolicy.preset("partial", groups_per_step=1, max_staleness=1, when_late=when_late)
    queue = TrajectoryQueue(policy)
    slow = queue.admit(_request(0), 0)
    for version in (0, 1):
        queue.admit(_request(1), version).group = _group(version)
    assert queue.late() == []
    assert queue.select(more_to_come=True) is not None
    assert queue.select(more_to_come=True) is None, "waiting costs nothing yet"
    assert queue.select(more_to_come=True, engine_idles=True) is not None
    return queue, slow


def test_a_straggler_is_dropped_if_so_configured_and_the_engine_idles():
    queue, slow = _with_a_straggler("drop")
    assert queue.late() == [slow]


def test_a_late_group_is_trained_as_long_as_it_has_a_token_that_is_young_enough():
    queue, slow = _with_a_straggler("mask")
    policy = queue.policy
    assert queue.late() == []
    queue.finish(slow, _group(1), Counter())
    assert queue.late() == []
    assert policy.late(queue.admitted, learner=3) == [slow]
    queue.admit(_request(2), 2).group = _group(2)
    assert queue.select(more_to_come=True) == [slow]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "partal"}, "Did you mean 'partial'"),
        ({"mode": "on_policy", "max_staleness": 2}, r"set staleness\.mode=partial"),
        ({"mode": "stale", "max_staleness": 0}, "Set it to 1 or more"),
        ({"mode": "stale", "window": 3}, "Set it to 4 or more"),
        ({"mode": "stale", "when_late": "mask"}, r"Set staleness\.mode=partial, or staleness\.when_late=drop"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        StalenessPolicy.preset(**{"groups_per_step": 4, **arguments})
