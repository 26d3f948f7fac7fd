import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.envs.sampler import TaskSampler
from agentloop.errors import UserError


@given(num_tasks=st.integers(1, 30), seed=st.integers(0, 5), epochs=st.integers(1, 4), shuffle=st.booleans())
def test_every_epoch_contains_every_task_once(num_tasks, seed, epochs, shuffle):
    sampler = TaskSampler(num_tasks, seed=seed, shuffle=shuffle)
    for epoch in range(epochs):
        assert sampler.epoch == epoch
        assert sorted(sampler.take(num_tasks)) == list(range(num_tasks))


@given(num_tasks=st.integers(1, 20), takes=st.lists(st.integers(0, 15), min_size=1, max_size=8), cut=st.integers(0, 8))
def test_restored_sampler_continues_where_it_stopped(num_tasks, takes, cut):
    unbroken = TaskSampler(num_tasks, seed=3)
    expected = [unbroken.take(n) for n in takes]
    first = TaskSampler(num_tasks, seed=3)
    got = [first.take(n) for n in takes[:cut]]
    second = TaskSampler(num_tasks, seed=3)
    second.load_state_dict(first.state_dict())
    got += [second.take(n) for n in takes[cut:]]
    assert got == expected


def test_order_changes_with_epoch_and_seed():
    sampler = TaskSampler(50, seed=0)
    first, second = sampler.take(50), sampler.take(50)
    assert first != second
    assert TaskSampler(50, seed=1).take(50) != first


def test_unshuffled_order_matches_the_dataset():
    assert TaskSampler(3, shuffle=False).take(5) == [0, 1, 2, 0, 1]


def test_dataset_of_another_size_is_rejected():
    with pytest.raises(UserError, match=r"3 tasks when the checkpoint was written, but now it has 4"):
        TaskSampler(4).load_state_dict(TaskSampler(3).state_dict())
