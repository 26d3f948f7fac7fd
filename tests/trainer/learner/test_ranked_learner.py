"""`learner.ranks`: a learner whose ranks beyond the first are actors of Ray."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from safetensors.torch import load_file

from agentloop.config.learner import LearnerConfig
from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.cluster.rank_actor import Objects
from agentloop.trainer.learner.ranked_learner import OwningLearner
from agentloop.trainer.run.learners import create, create_critic
from agentloop.trainer.run.train import train
from tests.support.processes import descendants
from tests.support.tiny import random_batch as _random_batch

pytestmark = pytest.mark.slow

RANK = "ray::RankActor"
"""Beginning of the name that Ray gives the process of a rank."""


def _config(model: Path, **options: object) -> LearnerConfig:
    values: dict[str, object] = {"device": "cpu", "ranks": 2, "token_budget": 256, "lr": 1e-3, **options}
    return LearnerConfig(model=str(model), **values)  # type: ignore[arg-type]


def _batch(seed: int = 0) -> TrainBatch:
    batch: TrainBatch = _random_batch(7, seed=seed, lengths=(4, 60))
    return batch


def _is_same(name: str) -> bool:
    """Return whether a metric does not depend on the number of ranks."""
    timed = ("time/", "learner/seconds/", "learner/tokens_per_second", "learner/flops_per_second")
    return not name.startswith((*timed, "learner/balance"))


async def test_a_run_on_two_ranks_is_the_run_on_one_and_resumes_from_its_checkpoint(sums: Path):
    async def run(name: str, steps: int, ranks: int) -> list[dict[str, float]]:
        overrides = [f"run.steps={steps}", f"learner.ranks={ranks}", "run.loggers=[]", "eval.every=0"]
        folder = await train(load_config(RunConfig, sums / "config.yaml", overrides), sums / name)
        assert (folder.model / "model.safetensors").is_file()
        assert not ray.is_initialized()
        assert not descendants(os.getpid(), RANK)
        return folder.read_metrics()

    whole = await run("whole", steps=4, ranks=1)
    await run("parts", steps=2, ranks=1)
    parts = await run("parts", steps=4, ranks=2)
    assert len(whole) == len(parts) == 4
    for one, two in zip(whole, parts, strict=True):
        assert set(filter(_is_same, one)) == set(filter(_is_same, two))
        for name in filter(_is_same, one):
            assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-9), name


@pytest.fixture(scope="module")
def learner(sums_model: Path) -> Iterator[OwningLearner]:
    found = create(_config(sums_model))
    assert isinstance(found, OwningLearner)
    yield found
    found.close()


def test_a_user_error_of_every_rank_is_raised_once_and_training_continues(learner: OwningLearner):
    with pytest.raises(UserError, match=r"300 tokens, more than the token_budget of 256"):
        learner.step(_random_batch(2, lengths=(300, 301)))
    assert learner.step(_batch())["updates"] == 1


async def test_ranks_publish_whole_weights_also_after_an_engine_refused_them(learner: OwningLearner, tmp_path: Path):
    first, second = _Taker(most=2), _Taker()
    with pytest.raises(ValueError, match="full"):
        await learner.publish(first, 1)  # type: ignore[arg-type]
    await learner.publish(second, 1)  # type: ignore[arg-type]
    learner.save_hf(tmp_path / "hf")
    saved = load_file(tmp_path / "hf" / "model.safetensors")
    assert len(second.parts) == 2
    assert second.weights.keys() == saved.keys() - {"lm_head.weight"}  # tied: it is the embedding
    for name, tensor in second.weights.items():
        assert torch.equal(saved[name], tensor), name


def test_a_critic_trains_on_the_ranks_of_the_policy(learner: OwningLearner, sums_model: Path, tmp_path: Path):
    pids = descendants(os.getpid(), RANK)
    critic = create_critic(_config(sums_model, loss="value", lr=1e-2), learner.ranks)
    samples = [replace(sample, old_logprobs=np.zeros(sample.num_sampled, np.float32)) for sample in _batch().samples]
    before = critic.step(TrainBatch(samples))["loss"]
    critic.save(tmp_path / "critic")
    for _ in range(3):
        critic.step(TrainBatch(samples))
    assert critic.step(TrainBatch(samples))["loss"] < before
    critic.load(tmp_path / "critic")
    values = critic.logprobs(samples)
    assert [len(part) for part in values] == [sample.num_sampled for sample in samples]
    critic.close()
    critic.close()
    assert descendants(os.getpid(), RANK) == pids
    assert learner.step(_batch())["updates"] == 1


def _read(objects: Objects, batch: TrainBatch, folder: Path) -> None:
    array = batch.samples[0].token_ids
    (folder / "rank").write_text(f"{array.sum()} {array.flags.owndata or array.base.flags.owndata}")


def test_arrays_of_a_batch_reach_ranks_without_a_copy(learner: OwningLearner, tmp_path: Path):
    batch = _batch()
    learner.ranks.run(lambda: None, _read, batch, tmp_path)
    assert (tmp_path / "rank").read_text() == f"{batch.samples[0].token_ids.sum()} False"


def test_a_process_has_ranks_of_one_kind_only(learner: OwningLearner, sums_model: Path):
    with pytest.raises(UserError, match=r"several ranks is open in this process.*Close that learner first"):
        create(_config(sums_model))
    assert learner.step(_batch())["updates"] == 1


class _Taker:
    """An engine that keeps copies of what it is given, and may refuse it half way."""

    def __init__(self, most: int | None = None) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.parts: tuple[object, ...] = ()
        self._most = most

    async def update_weights(self, weights, version: int) -> None:
        self.parts = weights.share(False).parts
        for name, tensor in weights.tensors():
            if len(self.weights) == self._most:
                raise ValueError("full")
            self.weights[name] = tensor.clone()
