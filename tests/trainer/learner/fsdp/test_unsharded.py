"""A single rank does not shard its model, and computes the same as FSDP2 on one rank."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from agentloop.config.learner import LearnerConfig
from agentloop.registry.named_objects import load_object
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.learner.fsdp.unsharded import UnshardedModel

pytestmark = pytest.mark.slow

_TINY = Path(__file__).parents[3] / "support" / "tiny.py"
_random_batch = load_object(f"{_TINY}:random_batch", "function")


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request: pytest.FixtureRequest, tiny_qwen3) -> Path:
    return tiny_qwen3(tie_word_embeddings=request.param)


def _train(model: Path, *, gather_once: bool, dtype: str) -> tuple[FsdpLearner, list[dict[str, float]]]:
    learner = FsdpLearner(
        LearnerConfig(
            model=str(model),
            device="cpu",
            compute_dtype=dtype,
            gather_once=gather_once,
            token_budget=60,
            mini_batches=2,
            lr=0.01,
            kl_coef=0.1,
        )
    )
    return learner, [learner.step(_random_batch(7, seed=number)) for number in range(3)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_whole_model_trains_as_fsdp_does(model: Path, dtype: str):
    (whole, metrics), (sharded, expected) = (_train(model, gather_once=once, dtype=dtype) for once in (True, False))
    assert not any(isinstance(parameter, DTensor) for parameter in whole.policy.parameters())
    assert all(isinstance(parameter, DTensor) for parameter in sharded.policy.parameters())
    for got, want in zip(metrics, expected, strict=True):
        for name in ("loss", "grad_norm", "entropy", "reference_kl", "logprob_diff"):
            assert got[name] == pytest.approx(want[name], rel=1e-6), name
    parameters = dict(sharded.policy.named_parameters())
    for name, parameter in whole.policy.named_parameters():
        assert parameter.dtype == torch.float32
        torch.testing.assert_close(parameter, parameters[name].full_tensor(), rtol=1e-6, atol=1e-7)
    samples = _random_batch(7, seed=9).samples
    scored, expected_scores = whole.logprobs(samples), sharded.logprobs(samples)
    np.testing.assert_allclose(np.concatenate(scored), np.concatenate(expected_scores), rtol=1e-6)


def test_gradients_of_micro_batches_are_summed_in_the_precision_of_the_parameters():
    layer = torch.nn.Linear(1, 1, bias=False)
    placed = UnshardedModel(layer, torch.bfloat16)
    with placed.computing():
        assert layer.weight.dtype == torch.bfloat16
        for value in (256.0, 1.0):  # bfloat16 would round the sum to 256
            layer(torch.tensor([[value]], dtype=torch.bfloat16)).sum().backward()
    assert layer.weight.dtype == torch.float32
    assert layer.weight.grad is not None
    assert layer.weight.grad.item() == 257.0


def test_copies_take_no_memory_between_steps_and_leave_when_computing_fails():
    layer = torch.nn.Linear(8, 8)
    before = layer.weight
    placed = UnshardedModel(layer, torch.bfloat16)
    seen: list[tuple[torch.nn.Parameter, int]] = []

    def fail() -> None:
        with placed.computing():
            seen.append((layer.weight, layer.weight.untyped_storage().nbytes()))
            layer(torch.zeros(1, 9, dtype=torch.bfloat16))

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        fail()
    [(copy, size)] = seen
    assert size == 8 * 8 * 2
    assert layer.weight is before
    assert copy.untyped_storage().nbytes() == 0
