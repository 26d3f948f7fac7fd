import gzip
import json

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.envs.sampler import TaskSampler
from agentloop.trainer.run.metrics.sampling import sampling_metrics
from agentloop.trainer.run.train import train
from agentloop.trainer.schedule.observers import Observer
from agentloop.trainer.schedule.producer import Producer
from agentloop.types.requests import Group
from agentloop.types.trajectory import SegmentKind, Trajectory

pytestmark = pytest.mark.slow

_UNEQUAL, _EQUAL = (1.0, 0.0), (1.0, 1.0)


def _trajectory(reward):
    trajectory = Trajectory(reward=reward)
    trajectory.append(SegmentKind.PROMPT, [1])
    trajectory.append(SegmentKind.SAMPLED, [2], logprobs=[0.0], versions=[0])
    return trajectory


class _Workers:
    """Workers that give each group predefined rewards."""

    policy_version = 0

    def __init__(self, rewards):
        self._rewards = iter(rewards)

    async def play(self, request, on_trajectory):
        return Group(request, [_trajectory(reward) for reward in next(self._rewards)])

    def room(self):
        return 1000


async def _play(sums, sampling, *rewards, mode="on_policy"):
    """Return the groups that a step of three trains on, and the numbers of all groups."""
    settings = [f"algorithm={{groups_per_step: 3, group_size: 2, dynamic_sampling: {sampling}}}"]
    config = load_config(RunConfig, sums / "config.yaml", [*settings, f"staleness.mode={mode}"])
    producer = Producer(config, _Workers(rewards), TaskSampler(10), Observer())
    try:
        producer.admit()
        while (selection := producer.select()) is None:
            await producer.changed()
            producer.admit()
    finally:
        await producer.close()
    producer.queue.check()
    return selection.trained, sampling_metrics(selection)


async def test_without_it_one_round_is_played_and_all_is_trained(sums):
    trained, metrics = await _play(sums, "null", _UNEQUAL, _EQUAL, _EQUAL)
    assert [group.request.group_id for group in trained] == ["1-0", "1-1", "1-2"]
    assert metrics["sampling/rounds"] == 1


async def test_rounds_are_played_until_enough_groups_have_unequal_rewards(sums):
    rounds = [_UNEQUAL, _EQUAL, (None, 1.0)], [_EQUAL, _UNEQUAL], [(0.5, 0.0)]
    trained, metrics = await _play(sums, "{}", *(rewards for each in rounds for rewards in each))
    assert [group.request.group_id for group in trained] == ["1-0", "1-4", "1-5"]
    assert metrics["sampling/rounds"] == 3
    assert metrics["sampling/groups_played"] == 6


async def test_every_group_is_counted_once(sums):
    _, metrics = await _play(sums, "{oversampling: 1.6}", _UNEQUAL, _EQUAL, _UNEQUAL, _UNEQUAL, _UNEQUAL)
    assert metrics == {
        "sampling/rounds": 1,
        "sampling/groups_played": 5,
        "sampling/groups_trained": 3,
        "sampling/groups_equal": 1,
        "sampling/groups_unjudged": 0,
        "sampling/groups_untrainable": 0,
        "sampling/groups_surplus": 1,
    }


async def test_a_group_without_rewards_is_not_called_equal(sums):
    _, metrics = await _play(sums, "{}", (None, 1.0), (None, None), _EQUAL, *[_UNEQUAL] * 6)
    assert metrics["sampling/groups_unjudged"] == 2
    assert metrics["sampling/groups_equal"] == 1


async def test_the_rounds_are_bounded(sums):
    trained, metrics = await _play(sums, "{max_rounds: 2}", *[_EQUAL] * 5, _UNEQUAL)
    assert [group.request.group_id for group in trained] == ["1-5"]
    assert metrics["sampling/rounds"] == 2


async def test_a_useless_group_is_replaced_at_once_if_weights_change_in_flight(sums):
    trained, _ = await _play(sums, "{}", _EQUAL, *[_UNEQUAL] * 10, mode="partial")
    assert [group.request.group_id for group in trained] == ["1-1", "1-2", "1-3"]
    trained, metrics = await _play(sums, "{max_rounds: 2}", *[_EQUAL] * 100, mode="partial")
    assert trained == []
    assert 6 <= metrics["sampling/groups_equal"] <= 11


_DYNAMIC = "algorithm={groups_per_step: 4, group_size: 2, dynamic_sampling: {oversampling: 1.25}}"


async def _run(sums, folder, *overrides):
    config = load_config(RunConfig, sums / "config.yaml", [_DYNAMIC, "eval.every=0", *overrides])
    return await train(config, folder)


def _without_time(folder):
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in folder.read_metrics()]


async def test_a_run_trains_on_full_batches_and_goes_on_exactly(sums, tmp_path):
    whole = await _run(sums, tmp_path / "whole", "run.steps=4")
    lines = _without_time(whole)
    assert [line["sampling/groups_trained"] for line in lines] == [4.0] * 4
    assert [line["learner/num_trajectories"] for line in lines] == [8.0] * 4
    assert max(line["sampling/rounds"] for line in lines) > 1
    assert sum(line["sampling/groups_equal"] for line in lines) > 0
    # What was played is written, with the groups that were not trained on, each under a name of its own.
    with gzip.open(whole.trajectories / "step_000001.jsonl.gz", "rt") as file:
        names = [json.loads(line)["trajectory_id"] for line in file]
    assert len(set(names)) == len(names) == 2 * lines[0]["sampling/groups_played"]

    await _run(sums, tmp_path / "parts", "run.steps=2")
    assert _without_time(await _run(sums, tmp_path / "parts", "run.steps=4")) == lines
