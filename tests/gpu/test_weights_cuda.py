"""Weights on two GPUs: a shelf that is spread over the ranks of a learner, and broadcasts by NCCL."""

import asyncio
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.run.learners import create
from agentloop.weights.broadcast import BroadcastFailed, BroadcastWeights, Sender
from agentloop.weights.shelf import SharedWeights, WeightShelf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

OTHER = """
import pickle, sys, torch
from agentloop.weights.broadcast import BroadcastFailed
from agentloop.weights.shelf import WeightShelf
torch.cuda.set_device(1)
shelf = WeightShelf()
while line := sys.stdin.readline():
    given = pickle.loads(bytes.fromhex(line))
    try:
        shared = given.shared(shelf)
    except BroadcastFailed as error:
        print(pickle.dumps(str(error)).hex(), flush=True)
        continue
    mapped = shared.open(torch.device("cuda", 1))
    found = [(name, str(tensor.device), tensor.cpu().clone()) for name, tensor in mapped]
    mapped.check()
    print(pickle.dumps(found).hex(), flush=True)
"""


class Other:
    """A process on the second GPU, which maps weights or receives them."""

    def __init__(self):
        command = [sys.executable, "-c", OTHER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, given):
        self.process.stdin.write(pickle.dumps(given).hex() + "\n")
        self.process.stdin.flush()

    def answer(self):
        return pickle.loads(bytes.fromhex(self.process.stdout.readline()))

    def close(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def other():
    found = Other()
    yield found
    found.close()


class Taker:
    """An engine that keeps what it is given."""

    shared: SharedWeights
    on_host = False

    async def update_weights(self, weights, version):
        self.shared = weights.shared(WeightShelf(on_host=self.on_host))


def test_each_of_two_ranks_shares_half_on_its_own_gpu(tmp_path: Path, other: Other):
    torch.manual_seed(0)
    shape = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    model = Qwen3ForCausalLM(Qwen3Config(**shape, **heads, tie_word_embeddings=True))
    model.save_pretrained(tmp_path)
    expected = {name: weight.detach().bfloat16() for name, weight in model.named_parameters()}
    settings = {"device": "cuda", "compute_dtype": "bfloat16", "ranks": 2, "compile_layers": False}
    learner = create(LearnerConfig(model=str(tmp_path), **settings))
    taker = Taker()
    for _ in range(2):
        asyncio.run(learner.publish(taker, 1))
        assert len(taker.shared.parts) == 2
        here = dict(taker.shared.tensors())
        assert {str(tensor.device) for tensor in here.values()} == {"cuda:0", "cuda:1"}
        other.ask(taker.shared)
        there = other.answer()
        assert {device for _, device, _ in there} == {"cuda:1"}
        assert list(here) == [name for name, *_ in there] == list(expected)
        for name, _, tensor in there:
            assert torch.equal(tensor, expected[name])
            assert torch.equal(here[name].cpu(), expected[name])
    taker.on_host = True
    asyncio.run(learner.publish(taker, 2))
    assert len(taker.shared.parts) == 2
    for name, tensor in taker.shared.tensors():
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, expected[name])
    learner.close()


def test_a_broadcast_by_nccl_survives_the_end_of_a_receiver(other: Other):
    shelf = WeightShelf(bucket_bytes=1 << 20)
    sender = Sender("127.0.0.1", 1, "nccl", seconds=60)
    for seed in range(3):
        torch.manual_seed(seed)
        weights = [(f"w{number}", torch.randn(300, 1000, device="cuda:0").bfloat16()) for number in range(8)]
        shared = shelf.put(weights)
        other.ask(BroadcastWeights(sender.rendezvous, 1, "127.0.0.1", shared.places))
        sender.send(shared)
        found = other.answer()
        assert all(device == "cuda:1" for _, device, _ in found)
        assert all(torch.equal(tensor, dict(weights)[name].cpu()) for name, _, tensor in found)
    other.close()
    short = Sender("127.0.0.1", 1, "nccl", seconds=5)
    with pytest.raises(BroadcastFailed, match="no transfer for 5 s"):
        short.send(shared)
    # The receiver has died: what the kernel writes may still have room there, so that nobody notices before it is told.
    told = threading.Timer(5, sender.abort)
    told.start()
    with suppress(BroadcastFailed):
        sender.send(shared)
    told.join()
    again, new = Sender("127.0.0.1", 1, "nccl", seconds=60), Other()
    new.ask(BroadcastWeights(again.rendezvous, 1, "127.0.0.1", shared.places))
    again.send(shared)
    assert all(torch.equal(tensor, dict(weights)[name].cpu()) for name, _, tensor in new.answer())
    again.abort()
    new.close()
