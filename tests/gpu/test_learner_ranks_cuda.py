"""The learner on CUDA with its optimizer on the host, and on two GPUs: the numbers of one that has all it needs."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentloop.errors import UserError
from agentloop.trainer.backends import offload, ranked
from agentloop.trainer.backends.fsdp import FsdpLearner
from agentloop.trainer.batch import Sample, TrainBatch
from agentloop.trainer.learner import LearnerConfig, create

pytestmark = pytest.mark.gpu
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        initializer_range=0.05,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def _batch(seed: int = 0) -> TrainBatch:
    rng = np.random.default_rng(seed)
    samples = []
    for length in rng.integers(4, 300, size=24):
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        ids = rng.integers(0, 512, length).astype(np.int32)
        logprobs = np.where(mask, -6.2, 0).astype(np.float32)
        samples.append(Sample(ids, mask, logprobs, np.zeros(length, np.int32), float(rng.normal())))
    return TrainBatch(samples)


def _config(folder: Path, **options: object) -> LearnerConfig:
    plain: dict[str, object] = {"device": "cuda", "compute_dtype": "bfloat16", "lr": 1e-3, "token_budget": 1000}
    return LearnerConfig(model=str(folder), **(plain | {"compile_layers": False} | options))  # type: ignore[arg-type]


def _weights(learner: FsdpLearner) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().cpu() for name, parameter in learner.policy.named_parameters()}


def test_an_optimizer_on_the_host_takes_the_same_steps(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(offload, "_BYTES", 2**20)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    gradients = _config(model_folder, compute_dtype="float32", attention="sdpa")
    plain = FsdpLearner(gradients)
    parted = FsdpLearner(gradients.model_copy(update={"offload": "optimizer"}))
    for number in range(2):
        plain.step(_batch(number))
        parted.step(_batch(number))
    states = list(parted._optimizer.state.values())
    assert states
    assert all(state["exp_avg"].is_pinned() and state["exp_avg_sq"].is_pinned() for state in states)
    for name, weight in _weights(plain).items():
        torch.testing.assert_close(_weights(parted)[name], weight, rtol=1e-5, atol=1e-6)
    parted.save(tmp_path / "state")
    resumed = FsdpLearner(gradients.model_copy(update={"offload": "optimizer"}))
    resumed.load(tmp_path / "state")
    assert all(not state["exp_avg"].is_cuda for state in resumed._optimizer.state.values())
    assert resumed.step(_batch(2))["grad_norm"] == pytest.approx(plain.step(_batch(2))["grad_norm"], rel=1e-4)


def test_a_model_on_the_host_trains_as_one_on_the_device(model_folder: Path):
    plain, parted = (FsdpLearner(_config(model_folder, offload=name)) for name in ("off", "all"))
    for number in range(2):
        want, got = plain.step(_batch(number)), parted.step(_batch(number))
        assert got["loss"] == pytest.approx(want["loss"], abs=1e-3)
        assert got["grad_norm"] == pytest.approx(want["grad_norm"], rel=1e-2)
    assert all(not parameter.is_cuda for parameter in parted.policy.parameters())


CASES: dict[str, dict[str, object]] = {
    "plain": {},
    "layer by layer": {"gather_once": False},
    "the optimizer on the host": {"offload": "optimizer"},
    "the model on the host": {"offload": "all"},
    "shared rows, compiled": {"sequence_parallel": 2, "compile_layers": True},
}


@pytest.fixture(scope="module")
def expected(model_folder: Path) -> list[dict[str, float]]:
    """Two steps of one rank."""
    learner = FsdpLearner(_config(model_folder))
    return [learner.step(_batch(number)) for number in range(2)]


@pytest.fixture(scope="module")
def processes(model_folder: Path, expected: list[dict[str, float]]) -> Iterator[None]:
    """Of all tests below: a learner that is open keeps them."""
    learner = create(_config(model_folder, ranks=2))
    yield
    learner.close()


@two_gpus
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one(name: str, model_folder: Path, expected: list[dict[str, float]], processes: None):
    learner = create(_config(model_folder, ranks=2, **CASES[name]))
    found = [learner.step(_batch(number)) for number in range(2)]
    learner.close()
    for got, want in zip(found, expected, strict=True):
        assert got["loss"] == pytest.approx(want["loss"], abs=2e-3)
        assert got["grad_norm"] == pytest.approx(want["grad_norm"], rel=2e-2)
        assert got["entropy"] == pytest.approx(want["entropy"], rel=1e-3)


@two_gpus
def test_a_rank_that_dies_is_named(model_folder: Path, processes: None):
    learner = create(_config(model_folder, ranks=2))
    assert learner.step(_batch())["updates"] == 1
    assert ranked._processes is not None
    os.kill(ranked._processes.pids[1], signal.SIGKILL)
    with pytest.raises(UserError, match="rank 1 of 2 was killed by signal 9"):
        learner.step(_batch())
    learner.close()
