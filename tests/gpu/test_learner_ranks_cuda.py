"""The learner on CUDA with its optimizer on the host, and on two GPUs: the numbers of one that has all it needs."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.cluster.learner_ranks import LearnerRanks
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.run.learners import create
from tests.support.processes import write_pid
from tests.support.tiny import random_batch, save_small_qwen3

pytestmark = pytest.mark.gpu
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = save_small_qwen3(tmp_path_factory.mktemp("model"))
    return folder


def _batch(seed: int = 0) -> TrainBatch:
    batch: TrainBatch = random_batch(24, seed=seed, lengths=(4, 300), vocab=512, logprob=-6.2)
    return batch


def _config(folder: Path, **options: object) -> LearnerConfig:
    plain: dict[str, object] = {"device": "cuda", "compute_dtype": "bfloat16", "lr": 1e-3, "token_budget": 1000}
    return LearnerConfig(model=str(folder), **(plain | {"compile_layers": False} | options))  # type: ignore[arg-type]


def _weights(learner: FsdpLearner) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().cpu() for name, parameter in learner.policy.named_parameters()}


def test_an_optimizer_on_the_host_takes_the_same_steps(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    gradients = _config(model_folder, compute_dtype="float32", attention="sdpa")
    plain = FsdpLearner(gradients)
    parted = FsdpLearner(gradients.replace(offload="optimizer"))
    parted.optimizer.part_bytes = 2**20
    for number in range(2):
        plain.step(_batch(number))
        parted.step(_batch(number))
    states = list(parted.optimizer.state.values())
    assert states
    assert all(state["exp_avg"].is_pinned() and state["exp_avg_sq"].is_pinned() for state in states)
    for name, weight in _weights(plain).items():
        torch.testing.assert_close(_weights(parted)[name], weight, rtol=1e-5, atol=1e-6)
    parted.save(tmp_path / "state")
    resumed = FsdpLearner(gradients.replace(offload="optimizer"))
    resumed.load(tmp_path / "state")
    assert all(not state["exp_avg"].is_cuda for state in resumed.optimizer.state.values())
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


Steps = dict[bool, list[dict[str, float]]]


@pytest.fixture(scope="module")
def expected(model_folder: Path) -> Steps:
    """Two steps of one rank, without and with compiled layers, which round at other places."""
    found = {}
    for compiled in (False, True):
        learner = FsdpLearner(_config(model_folder, compile_layers=compiled))
        found[compiled] = [learner.step(_batch(number)) for number in range(2)]
    return found


@pytest.fixture(scope="module")
def ranks(expected: Steps) -> Iterator[LearnerRanks]:
    """Two ranks, for all tests below."""
    found = LearnerRanks(2, "cuda")
    yield found
    found.close()


@two_gpus
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one(name: str, model_folder: Path, expected: Steps, ranks: LearnerRanks):
    learner = create(_config(model_folder, ranks=2, **CASES[name]), ranks)
    found = [learner.step(_batch(number)) for number in range(2)]
    learner.close()
    for got, want in zip(found, expected["compile_layers" in CASES[name]], strict=True):
        assert got["loss"] == pytest.approx(want["loss"], abs=2e-3)
        assert got["grad_norm"] == pytest.approx(want["grad_norm"], rel=2e-2)
        assert got["entropy"] == pytest.approx(want["entropy"], rel=1e-3)


@two_gpus
def test_a_rank_that_dies_is_named(model_folder: Path, tmp_path: Path, ranks: LearnerRanks):
    learner = create(_config(model_folder, ranks=2), ranks)
    assert learner.step(_batch())["updates"] == 1
    ranks.run(write_pid, tmp_path / "pid")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with pytest.raises(UserError, match="Learner rank 1 of 2 died on node"):
        learner.step(_batch())
