"""Training in float16: the loss is scaled, so that small gradients do not become 0, and the scale finds its size."""

import numpy as np
import pytest
import torch

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.learner.progress import Progress


@pytest.fixture(scope="module")
def folder(tiny_qwen3):
    return tiny_qwen3()


def learner(folder, dtype, **options):
    config = LearnerConfig(
        model=str(folder), device="cpu", compute_dtype=dtype, lr=1.0, eps=1e-6, grad_clip=None, **options
    )
    return FsdpLearner(config)


def batch(advantage):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 64, 24).astype(np.int32)
    mask = np.arange(24) > 7
    logprobs = np.where(mask, -4.0, 0).astype(np.float32)
    versions = np.where(mask, 0, -1).astype(np.int32)
    return TrainBatch([Sample(ids, mask, logprobs, versions, advantage) for advantage in (advantage, -0.5 * advantage)])


@pytest.mark.parametrize("loss", ["ppo", "gspo"])  # by token, and by whole trajectories
def test_gradients_too_small_for_float16_are_those_of_float32(folder, loss):
    norms = {}
    for dtype in ("float32", "float16"):
        result = learner(folder, dtype, loss=loss).step(batch(advantage=1e-6))
        norms[dtype] = result["grad_norm"]
        assert abs(result["loss"]) < 1e-5  # not scaled
    assert norms["float16"] == pytest.approx(norms["float32"], rel=0.02)


def test_an_overflow_skips_the_update_and_halves_the_scale_until_it_fits(folder):
    trained = learner(folder, "float16")
    trained.progress.loss_scale = 2.0**26
    before = {name: tensor.clone() for name, tensor in trained.weights()}
    assert trained.step(batch(advantage=100.0))["updates_skipped_total"] == 1
    assert trained.progress.loss_scale == 2.0**25
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.weights())
    for _ in range(24):
        skipped = trained.step(batch(advantage=100.0))["updates_skipped_total"]
    assert trained.progress.updates > 0
    assert trained.progress.loss_scale == 2.0 ** (26 - skipped)


def test_the_scale_doubles_after_200_finite_updates_in_a_row():
    progress = Progress()
    for _ in range(199):
        progress.rescale(is_finite=True)
    progress.rescale(is_finite=False)
    assert progress.loss_scale == 2.0**15
    for _ in range(200):
        progress.rescale(is_finite=True)
    assert (progress.loss_scale, progress.updates_at_scale) == (2.0**16, 0)


def test_megatron_refuses_float16():
    with pytest.raises((UserError, ValueError), match="compute_dtype"):
        LearnerConfig(model="m", backend="megatron", compute_dtype="float16")
