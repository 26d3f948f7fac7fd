"""A learner that slept between its steps takes the same steps, bit for bit, and held no memory meanwhile."""

import asyncio

import numpy as np
import pytest
import torch
from torch import nn

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.learner.offload.host_offload import HostOffload
from agentloop.trainer.learner.offload.optimizer_offload import local_part
from agentloop.trainer.run.learners import create
from tests.support.tiny import random_batch as _random_batch

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


class Published:
    def __init__(self):
        self.weights = {}

    async def update_weights(self, weights, version):
        self.weights = {name: tensor.clone() for name, tensor in weights.tensors()}


def config(model, **options):
    usual = {"lr": 0.01, "token_budget": 60, "mini_batches": 2, "kl_coef": 0.1, "device": "cpu"}
    return LearnerConfig(model=str(model), **(usual | options))


def trained(learner, *, sleeps):
    """Three steps: their metrics without times, the weights and the log-probabilities of the last two policies."""
    metrics = []
    for number in range(3):
        if sleeps:
            learner.sleep()
            learner.sleep()
            learner.wake()
            learner.wake()
        found = learner.step(_random_batch(7, seed=number))
        metrics.append({key: value for key, value in found.items() if "second" not in key and key != "mfu"})
    engine, samples = Published(), _random_batch(4, seed=9).samples
    asyncio.run(learner.publish(engine, 3))
    return metrics, engine.weights, learner.logprobs(samples), learner.reference_logprobs(samples)


def assert_same(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])
    for place in (2, 3):
        np.testing.assert_array_equal(np.concatenate(one[place]), np.concatenate(other[place]))


@pytest.mark.parametrize(
    "options",
    [{"gather_once": True}, {"gather_once": False}, {"compute_dtype": "bfloat16"}, {"tie": False}],
    ids=str,
)
def test_steps_with_sleep_in_between_are_those_without(tiny_qwen3, options):
    model = tiny_qwen3(tie_word_embeddings=options.get("tie", True))
    options = {name: value for name, value in options.items() if name != "tie"}
    awake = trained(FsdpLearner(config(model, **options)), sleeps=False)
    assert_same(trained(FsdpLearner(config(model, **options)), sleeps=True), awake)


def test_all_ranks_of_a_learner_sleep(tiny_qwen3):
    awake = create(config(tiny_qwen3(), ranks=2))
    try:
        asleep = create(config(tiny_qwen3()), awake.ranks)  # ranks take long to start
        assert_same(trained(awake, sleeps=False), trained(asleep, sleeps=True))
    finally:
        awake.close()


def test_a_learner_that_slept_saves_and_loads_its_state(tiny_qwen3, tmp_path):
    learner = FsdpLearner(config(tiny_qwen3()))
    learner.step(_random_batch(7))
    learner.sleep()
    learner.wake()
    learner.save(tmp_path / "state")
    other = FsdpLearner(config(tiny_qwen3()))
    other.load(tmp_path / "state")
    assert_same(trained(other, sleeps=True), trained(learner, sleeps=False))


def test_asleep_it_holds_no_memory_of_weights_optimizer_and_reference(tiny_qwen3):
    learner = FsdpLearner(config(tiny_qwen3(), gather_once=False))  # else weights are the file's, mapped, on CPUs
    learner.step(_random_batch(7))
    count = sum(parameter.numel() for parameter in learner.policy.parameters())
    every = [*learner.policy.parameters(), *learner.reference.parameters()]
    every += [value for state in learner.optimizer.state.values() for value in (state["exp_avg"], state["exp_avg_sq"])]
    learner.sleep()
    assert learner.host_offload.num_bytes >= 4 * 4 * count  # weights, two moments, reference
    assert all(local_part(tensor).untyped_storage().nbytes() == 0 for tensor in every)
    with pytest.raises(AssertionError, match="awake"):
        learner.step(_random_batch(7))
    learner.wake()
    assert all(local_part(tensor).untyped_storage().nbytes() for tensor in every)
    assert learner.host_offload.num_bytes == 0


def test_memory_comes_back_under_every_tensor_that_views_it():
    torch.manual_seed(0)
    linear = nn.Linear(7, 5)
    buffer = torch.randn(33)
    view, strided = buffer[3:20], buffer[::2]
    elsewhere = torch.randn(4, device="meta")
    before = [tensor.detach().clone() for tensor in (*linear.parameters(), buffer, view, strided)]
    away = HostOffload(piece_bytes=64)  # storages lie across pieces
    for _ in range(2):
        away.offload([*linear.parameters(), view, buffer, linear.weight, elsewhere], CPU)
        assert away.num_bytes == 4 * (35 + 5 + 33)
        assert buffer.untyped_storage().nbytes() == 0
        away.restore()
        after = [*linear.parameters(), buffer, view, strided]
        assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    view.fill_(1.0)
    assert buffer[3] == 1.0
    assert away.num_pinned_bytes == -(-4 * (35 + 5 + 33) // 64) * 64


def test_memory_that_a_file_is_mapped_to_stays_where_it_is(tmp_path):
    torch.save({"w": torch.arange(3.0)}, tmp_path / "w.pt")
    mapped = torch.load(tmp_path / "w.pt", mmap=True, weights_only=True)["w"]
    away = HostOffload()
    away.offload([mapped], CPU)
    assert away.num_bytes == 0
    assert mapped.tolist() == [0, 1, 2]
    away.restore()
