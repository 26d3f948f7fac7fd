"""Weights that other processes map, on the host; tests/gpu has the same on GPUs."""

import copy
import os
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import EngineError
from agentloop.weights.shelf import CannotMap, Overwritten, WeightShelf

pytestmark = pytest.mark.slow


def weights_of(seed=0, count=5):
    torch.manual_seed(seed)
    some = [
        ("matrix", torch.randn(7, 5).bfloat16()),
        ("vector", torch.randn(11)),
        ("number", torch.tensor(2.5)),
        ("turned", torch.randn(4, 6).T),
        ("nothing", torch.zeros(0)),
    ]
    return some[:count]


def same(found, expected):
    found = list(found)
    return [name for name, _ in found] == [name for name, _ in expected] and all(
        mine.dtype == theirs.dtype and torch.equal(mine, theirs)
        for (_, mine), (_, theirs) in zip(found, expected, strict=True)
    )


READER = """
import pickle, sys
from agentloop.weights.shelf import CannotMap
from agentloop.errors import EngineError
mapped = None
while line := sys.stdin.readline():
    shared = pickle.loads(bytes.fromhex(line))
    try:
        if mapped is None or not mapped.again(shared):
            mapped = shared.open()
            print("opened", end=" ")
        weights = [(name, tensor.clone()) for name, tensor in mapped]
        mapped.check()
        answer = weights
    except EngineError as error:
        answer = f"{type(error).__name__}: {error}"
    print(pickle.dumps(answer).hex(), flush=True)
"""


@pytest.fixture
def reader():
    """Another process: send it `SharedWeights`, get back whether it mapped them anew, and what it read."""
    process = subprocess.Popen([sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(shared):
        process.stdin.write(pickle.dumps(shared).hex() + "\n")
        process.stdin.flush()
        *opened, answer = process.stdout.readline().split()
        return opened == ["opened"], pickle.loads(bytes.fromhex(answer))

    yield read
    process.stdin.close()
    assert process.wait(timeout=60) == 0


def test_another_process_reads_them_bit_for_bit_and_maps_them_once(reader):
    shelf = WeightShelf(bucket_bytes=512)
    for seed in range(3):
        opened, found = reader(shelf.put(weights_of(seed)))
        assert opened is (seed == 0)
        assert same(found, weights_of(seed))
    assert len(shelf.buckets) > 1


def test_what_was_filled_again_is_not_taken_for_what_it_was(reader):
    shelf = WeightShelf()
    old = shelf.put(weights_of(0))
    new = shelf.put(weights_of(1))
    assert reader(old) == (True, "Overwritten: the shared weights were overwritten while they were read")
    assert same(reader(new)[1], weights_of(1))

    def interrupted():
        yield weights_of(2)[0]
        assert "overwritten" in reader(new)[1]  # while it is filled
        yield from weights_of(2)[1:]

    assert same(reader(shelf.put(interrupted()))[1], weights_of(2))


def test_other_weights_are_mapped_again(reader):
    shelf = WeightShelf(bucket_bytes=512)
    first = shelf.put(weights_of(0))
    assert same(reader(first)[1], weights_of(0))
    fewer = shelf.put(weights_of(1, count=2))
    opened, found = reader(fewer)
    assert opened
    assert same(found, weights_of(1, count=2))
    assert fewer.shapes == {"matrix": (7, 5), "vector": (11,)}
    assert fewer.num_bytes == 7 * 5 * 2 + 11 * 4


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200), st.sampled_from(["int8", "float32"]))),
        max_size=4,
    )
)
def test_any_sequence_of_weights_is_what_was_put_last(puts):
    shelf = WeightShelf(bucket_bytes=600)
    for number, entries in enumerate(puts):
        weights = [(name, torch.full((size,), number, dtype=getattr(torch, dtype))) for name, size, dtype in entries]
        shared = shelf.put(weights)
        assert same(shared.tensors(), weights)
        shared.open().check()


def test_the_owner_reads_its_own_memory_and_the_learner_may_go_on():
    shelf = WeightShelf()
    weight = torch.ones(3)
    shared = shelf.put([("w", weight)])
    weight.fill_(7)
    assert shared.is_of_this_process
    assert [tensor.tolist() for _, tensor in shared.tensors()] == [[1, 1, 1]]


def test_memory_of_a_process_that_is_gone_cannot_be_mapped():
    program = """
import pickle, torch
from agentloop.weights.shelf import WeightShelf
shelf = WeightShelf()
print(pickle.dumps(shelf.put([("w", torch.ones(3))])).hex())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shared = pickle.loads(bytes.fromhex(done.stdout))
    assert not shared.is_of_this_process
    with pytest.raises(CannotMap, match="cannot be mapped"):
        shared.open()


def test_memory_is_given_back_with_the_shelf():
    shelf = WeightShelf()
    handle = shelf.put(weights_of()).parts[0].buckets[0]
    path = f"/proc/self/fd/{handle.descriptor}"
    assert "agentloop-weights" in os.readlink(path)
    gone = weakref.ref(shelf)
    del shelf
    assert gone() is None
    assert not os.path.exists(path) or "agentloop-weights" not in os.readlink(path)


def test_who_reads_while_the_shelf_is_filled_again_hears_of_it_at_the_end():
    shelf = WeightShelf()
    reading = shelf.put(weights_of()).tensors()
    assert next(reading)[0] == "matrix"
    shelf.put(weights_of(1))
    with pytest.raises(Overwritten):
        list(reading)


def test_a_stamp_is_of_one_filling():
    shelf = WeightShelf()
    shared = shelf.put(weights_of())
    mapped = copy.copy(shared).open()
    mapped.check()
    shelf.put(weights_of(1))
    with pytest.raises(EngineError, match="overwritten"):
        mapped.check()
