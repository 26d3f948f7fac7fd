"""The queue in a checkpoint."""

from collections import Counter

from agentloop.config.staleness import StalenessConfig
from agentloop.trainer.schedule.queue import TrajectoryQueue
from agentloop.trainer.staleness.policy import StalenessPolicy
from agentloop.types.limits import StopReason
from agentloop.types.requests import Group, RolloutRequest
from agentloop.types.trajectory import Trajectory


def queue():
    return TrajectoryQueue(StalenessPolicy.of(StalenessConfig(mode="stale"), 3))


def ended(request, rewards):
    return Group(request, [Trajectory(reward=reward, stop_reason=StopReason.COMPLETED) for reward in rewards])


def test_a_group_with_a_failed_episode_is_saved_as_one_to_play():
    before = queue()
    good, failed, _running = [before.admit(RolloutRequest(group_id=n, row=0, n=4, seed=0), 0) for n in "abc"]
    before.finish(good, ended(good.request, [1.0, 0.0, 1.0]), Counter(surplus=1))
    before.finish(failed, ended(failed.request, [1.0, None]), Counter(surplus=1, deadline=1))
    state = before.state()
    assert [entry.group is None for entry in state.entries] == [False, True, True]
    assert len(state.trajectories) == 3
    assert state.counts == {"admitted": 12, "dropped/surplus": 1}
    assert failed.group is not None, "the run itself goes on with what it has"
    before.check()

    after = queue()
    assert [each.request.group_id for each in after.load(state, version=1)] == ["b", "c"]
    after.check()
