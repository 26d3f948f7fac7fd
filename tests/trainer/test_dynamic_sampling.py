import gzip
import json

from agentloop.config_loading import load_config
from agentloop.rollout import Group
from agentloop.trainer.algorithm import AlgorithmConfig, DynamicSamplingConfig
from agentloop.trainer.dynamic_sampling import StepGroups
from agentloop.trainer.run import train
from agentloop.trainer.run_config import RunConfig
from agentloop.trajectory import Trajectory

_UNEQUAL, _EQUAL = (1.0, 0.0), (1.0, 1.0)


def _groups(*rewards):
    return [Group(str(number), [Trajectory(reward=reward) for reward in group]) for number, group in enumerate(rewards)]


def _gather(settings, *rounds):
    """Plays the rounds that are asked for; what was asked for, and the result."""
    groups = StepGroups(AlgorithmConfig(groups_per_step=3, dynamic_sampling=settings))
    asked = []
    for played in rounds:
        asked.append(groups.num_to_play)
        groups.add(_groups(*played))
    return [*asked, groups.num_to_play], groups


def test_without_it_one_round_is_played_and_all_is_trained():
    asked, groups = _gather(None, [_UNEQUAL, _EQUAL, _EQUAL])
    assert asked == [3, 0]
    assert groups.trained == groups.played
    assert groups.metrics() == {}


def test_rounds_are_played_until_enough_groups_have_unequal_rewards():
    asked, groups = _gather(
        DynamicSamplingConfig(), [_UNEQUAL, _EQUAL, (None, 1.0)], [_EQUAL, _UNEQUAL], [(0.5, 0.0, None)]
    )
    assert asked == [3, 2, 1, 0]
    assert [[trajectory.reward for trajectory in group.trajectories] for group in groups.trained] == [
        [1.0, 0.0],
        [1.0, 0.0],
        [0.5, 0.0, None],
    ]
    assert len(groups.played) == 6


def test_every_group_is_counted_once():
    asked, groups = _gather(DynamicSamplingConfig(oversampling=1.6), [_UNEQUAL, _EQUAL, _UNEQUAL, _UNEQUAL, _UNEQUAL])
    assert asked == [5, 0]
    assert groups.metrics() == {
        "sampling/rounds": 1,
        "sampling/groups_played": 5,
        "sampling/groups_trained": 3,
        "sampling/groups_equal": 1,
        "sampling/groups_surplus": 1,
    }


def test_the_rounds_are_bounded():
    asked, groups = _gather(DynamicSamplingConfig(max_rounds=2), [_EQUAL] * 3, [_EQUAL, _EQUAL, _UNEQUAL])
    assert asked == [3, 3, 0]
    assert len(groups.trained) == 1


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
