import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.envs.mixture import MixedSampler, Source
from agentloop.envs.sampler import TaskSampler
from agentloop.errors import UserError


def mixed(*sources, **options):
    return MixedSampler(sources, **{"shuffle": False, **options})


def test_sources_are_drawn_by_their_weights():
    sampler = mixed(Source("a", 3, [range(4)]), Source("b", 1, [range(4, 6)]))
    assert sampler.take(8) == [0, 1, 4, 2, 3, 0, 5, 1]
    assert [sampler.source_of(task) for task in (3, 4)] == ["a", "b"]


@given(weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=4), num=st.integers(1, 200))
def test_each_share_is_exact_to_within_one_task(weights, num):
    sampler = mixed(*(Source(str(k), weight, [range(k, k + 1)]) for k, weight in enumerate(weights)))
    drawn = sampler.take(num)
    for k, weight in enumerate(weights):
        # With n sources, the one that is furthest behind is drawn, so none is more than a task ahead.
        assert drawn.count(k) < num * weight / sum(weights) + 1


def test_a_single_source_is_drawn_as_a_plain_dataset():
    assert MixedSampler([Source("a", 2, [range(9)])], seed=4).take(20) == TaskSampler(9, seed=4).take(20)


def test_tasks_outside_the_bounds_are_passed_over_four_times():
    sampler = mixed(Source("a", 1, [range(3)], keep=(0.1, 0.9)))
    for task, rewards in ((0, [0.0, 0.0]), (1, [0.0, 1.0]), (2, [1.0, 1.0])):
        sampler.record(task, rewards)
    assert sampler.metrics() == {"source/a/kept": 1 / 3}
    assert sampler.take(7) == [1, 1, 1, 1, 0, 1, 2]
    sampler.record(0, [1.0, 0.0])  # average 0.25: it teaches again
    assert sampler.metrics() == {"source/a/kept": 2 / 3}
    assert sampler.take(3) == [0, 1, 0]


def test_tasks_that_are_all_outside_the_bounds_are_played_again():
    sampler = mixed(Source("a", 1, [range(2)], keep=(0.1, 0.9)))
    sampler.record(0, [0.0])
    sampler.record(1, [1.0])
    assert sampler.take(4) == [0, 1, 0, 1]


def test_a_group_without_rewards_says_nothing():
    sampler = mixed(Source("a", 1, [range(2)], keep=(0.1, 0.9)))
    sampler.record(0, [])
    assert sampler.metrics() == {}
    assert sampler.take(2) == [0, 1]


def test_levels_rise_with_the_mean_of_32_groups():
    sampler = mixed(Source("a", 1, [range(2), range(2, 4), range(4, 6)], raise_at=0.5))
    for _ in range(31):
        sampler.record(0, [1.0])
    assert sampler.metrics() == {"source/a/level": 0.0}
    assert sampler.take(2) == [0, 1]
    sampler.record(1, [0.0])
    assert sampler.metrics() == {"source/a/level": 1.0}
    assert sampler.take(3) == [2, 3, 2]
    for _ in range(40):
        sampler.record(0, [1.0])  # groups of the level before that end late
    assert sampler.metrics() == {"source/a/level": 1.0}
    for _ in range(100):
        sampler.record(3, [1.0])
        sampler.record(5, [1.0])
    assert sampler.metrics() == {"source/a/level": 2.0}, "the last level stays"


@given(
    steps=st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0])), max_size=60), cut=st.integers(0, 60)
)
def test_a_restored_sampler_continues_exactly(steps, cut):
    def make():
        return MixedSampler(
            [
                Source("a", 2, [range(5)], keep=(0.1, 0.9)),
                Source("b", 1, [range(5, 8), range(8, 12)], raise_at=0.4),
            ],
            seed=3,
        )

    def go(sampler, part):
        taken = []
        for num, reward in part:
            for task in sampler.take(num):
                taken.append(task)
                sampler.record(task, [reward, reward])
        return taken

    unbroken, first, second = make(), make(), make()
    expected = go(unbroken, steps)
    got = go(first, steps[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    got += go(second, steps[cut:])
    assert (got, second.metrics(), second.epoch) == (expected, unbroken.metrics(), unbroken.epoch)


def test_a_saved_state_does_not_change_later():
    sampler = mixed(Source("a", 1, [range(2)], keep=(0.1, 0.9)))
    sampler.record(0, [0.0])
    state = sampler.state_dict()
    before = json.dumps(state)
    sampler.take(3)
    sampler.record(0, [1.0])
    assert json.dumps(state) == before


def test_other_sources_than_those_of_the_checkpoint_are_named():
    state = mixed(Source("a", 1, [range(2)])).state_dict()
    with pytest.raises(UserError, match=r"were \[\('a', 1\)\] when the checkpoint was written"):
        mixed(Source("b", 1, [range(2)])).load_state_dict(state)
    with pytest.raises(UserError, match="had 2 tasks when the checkpoint was written"):
        mixed(Source("a", 1, [range(3)])).load_state_dict(state)
    with pytest.raises(UserError, match="The sources of"):
        mixed(Source("a", 1, [range(2)])).load_state_dict({"num_tasks": 2, "num_taken": 0})
