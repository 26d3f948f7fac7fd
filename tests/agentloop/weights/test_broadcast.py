"""Weights that go to another process by gloo, as they go to other hosts; tests/gpu has NCCL."""

import pickle
import subprocess
import sys
import threading
import time

import pytest
import torch

from agentloop.weights.broadcast import BroadcastFailed, BroadcastWeights, Sender
from agentloop.weights.shelf import WeightShelf

pytestmark = pytest.mark.slow

HERE = "127.0.0.1"

RECEIVER = """
import pickle, sys, torch
from agentloop.weights.broadcast import BroadcastFailed
from agentloop.weights.shelf import WeightShelf
shelf = WeightShelf()
while line := sys.stdin.readline():
    try:
        shared = pickle.loads(bytes.fromhex(line)).shared(shelf)
        answer = [(name, tensor.clone()) for name, tensor in shared.tensors()], shared.parts[0].shelf
    except BroadcastFailed as error:
        answer = str(error), None
    print(pickle.dumps(answer).hex(), flush=True)
"""


class Receiving:
    """A process that receives."""

    def __init__(self):
        command = [sys.executable, "-c", RECEIVER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, rendezvous, rank, places):
        weights = BroadcastWeights(rendezvous, rank, HERE, places)
        self.process.stdin.write(pickle.dumps(weights).hex() + "\n")
        self.process.stdin.flush()

    def answer(self):
        return pickle.loads(bytes.fromhex(self.process.stdout.readline()))


@pytest.fixture
def receivers():
    found = [Receiving(), Receiving()]
    yield found
    for each in found:
        each.process.kill()
        each.process.communicate()


def weights(seed):
    torch.manual_seed(seed)
    return [("a", torch.randn(30, 10).bfloat16()), ("b", torch.randn(200)), ("c", torch.tensor(float(seed)))]


def same(found, expected):
    return all(
        name == other and torch.equal(tensor, value)
        for (name, tensor), (other, value) in zip(found, expected, strict=True)
    )


def test_all_receive_the_buckets_of_the_shelf_and_keep_their_memory(receivers):
    shelf = WeightShelf(bucket_bytes=1024)
    sender = Sender(HERE, 2, "gloo", seconds=120)
    names = set()
    for seed in range(3):
        shared = shelf.put(weights(seed))
        for rank, receiver in enumerate(receivers, start=1):
            receiver.ask(sender.rendezvous, rank, shared.places)
        sender.send(shared)
        for receiver in receivers:
            found, name = receiver.answer()
            assert same(found, weights(seed))
            names.add((receiver.process.pid, name))
    assert len(shelf.buckets) > 1
    assert len(names) == 2, "the same memory at each update"
    sender.abort()


def test_a_receiver_that_dies_ends_the_group_and_the_others_meet_again(receivers):
    shelf = WeightShelf()
    shared = shelf.put(weights(0))
    sender = Sender(HERE, 2, "gloo", seconds=120)
    for rank, receiver in enumerate(receivers, start=1):
        receiver.ask(sender.rendezvous, rank, shared.places)
    sender.send(shared)
    first, second = receivers
    assert same(first.answer()[0], weights(0))
    assert same(second.answer()[0], weights(0))
    shared = shelf.put([("large", torch.zeros(64 << 20, dtype=torch.uint8))])
    first.process.kill()
    first.process.wait()
    second.ask(sender.rendezvous, 2, shared.places)
    with pytest.raises(BroadcastFailed):
        sender.send(shared)
    assert "weight broadcast failed" in second.answer()[0]
    again = Sender(HERE, 1, "gloo", seconds=120)
    second.ask(again.rendezvous, 1, shared.places)
    again.send(shared)
    assert same(second.answer()[0], [("large", torch.zeros(64 << 20, dtype=torch.uint8))])
    again.abort()


def test_a_wait_for_receivers_that_never_come_can_be_stopped(receivers):
    sender = Sender(HERE, 2, "gloo", seconds=600)
    shelf = WeightShelf()
    shared = shelf.put(weights(0))
    receivers[0].ask(sender.rendezvous, 1, shared.places)
    failures = []

    def send():
        try:
            sender.send(shared)
        except BroadcastFailed as error:
            failures.append(str(error))

    sending = threading.Thread(target=send)
    sending.start()
    time.sleep(0.1)  # it waits now, or will see at once that it need not
    sender.abort()
    sending.join(60)
    assert "the group has ended" in failures[0]


def test_a_wait_for_weights_that_never_come_ends_at_its_limit():
    shelf = WeightShelf()
    with pytest.raises(BroadcastFailed, match=r"no transfer for 0\.2 s"):
        Sender(HERE, 1, "gloo", seconds=0.2).send(shelf.put(weights(0)))
