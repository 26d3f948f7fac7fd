import asyncio

import pytest

from agentloop.config.staleness import CutConfig
from agentloop.errors import UserError
from agentloop.trainer.schedule.group_completion import play_group
from agentloop.types.requests import Group, RolloutRequest
from agentloop.types.trajectory import Trajectory
from benchmarks.simulation.virtual_clock import VirtualClockLoop


class Workers:
    """Episodes that take the given seconds; a negative number is an episode that fails at that time."""

    def __init__(self, *seconds):
        self.seconds = seconds
        self.aborted = 0

    async def play(self, request, on_trajectory):
        async with asyncio.TaskGroup() as tasks:
            episodes = [tasks.create_task(self._episode(place, on_trajectory)) for place in range(request.n)]
        return Group(request, [episode.result() for episode in episodes])

    async def _episode(self, place, on_trajectory):
        try:
            await asyncio.sleep(abs(self.seconds[place]))
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        reward = None if self.seconds[place] < 0 else 1.0
        trajectory = Trajectory(trajectory_id=f"g-{place}", place=place, reward=reward)
        on_trajectory(trajectory)
        return trajectory


def play(workers, **cut):
    """Places in the group, what is not in it, seconds."""

    async def main():
        request = RolloutRequest(group_id="g", row=0, n=len(workers.seconds), seed=0)
        seen = []
        group, dropped = await play_group(workers, request, needed=3, cut=CutConfig(**cut), on_trajectory=seen.append)
        assert len(group.trajectories) + dropped.total() == request.n
        places = [each.place for each in group.trajectories]
        return places, dict(dropped), asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main())


def test_without_a_cut_all_are_waited_for():
    assert play(Workers(5, 1, 100)) == ([0, 1, 2], {}, 100)


def test_the_first_ones_of_too_many_make_the_group():
    workers = Workers(5, 1, 100, 3, 90)
    assert play(workers, extra_episodes=2) == ([0, 1, 3], {"surplus": 2}, 5)
    assert workers.aborted == 2


def test_an_extra_episode_takes_the_place_of_one_that_failed():
    assert play(Workers(5, -1, 7, 3, 90), extra_episodes=2) == ([0, 1, 2, 3], {"surplus": 1}, 7)


def test_after_the_deadline_fewer_are_enough():
    assert play(Workers(5, 1, 100), deadline=20, min_episodes=2) == ([0, 1], {"deadline": 1}, 20)
    assert play(Workers(5, 50, 100), deadline=20, min_episodes=2) == ([0, 1], {"deadline": 1}, 50)
    assert play(Workers(5, 1, 100), deadline=20) == ([0, 1, 2], {}, 100)


def test_a_group_keeps_all_episodes_if_all_failed():
    assert play(Workers(-5, -1, -2), deadline=20, min_episodes=1) == ([0, 1, 2], {}, 5)


def test_a_request_that_cannot_be_played_raises():
    class Broken(Workers):
        async def play(self, request, on_trajectory):
            raise UserError("no such tool")

    with pytest.raises(UserError, match="no such tool"):
        play(Broken(1, 2, 3), extra_episodes=1)


def test_cancelling_aborts_the_episodes():
    workers = Workers(50, 60, 70)

    async def main():
        request = RolloutRequest(group_id="g", row=0, n=3, seed=0)
        cut = CutConfig(deadline=10, min_episodes=1)
        playing = asyncio.create_task(
            play_group(workers, request, needed=3, cut=cut, on_trajectory=lambda trajectory: None)
        )
        await asyncio.sleep(5)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())
    assert workers.aborted == 3
