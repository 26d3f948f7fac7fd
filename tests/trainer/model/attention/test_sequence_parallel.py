"""`learner.sequence_parallel`: ranks that share each row compute the results of one rank."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.cluster.learner_ranks import LearnerRanks
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.run.learners import create

pytestmark = pytest.mark.slow

RANKS = 4
CASES: dict[str, dict[str, object]] = {
    "two pairs of ranks": {"sequence_parallel": 2},
    "a row over all ranks, which share heads of keys and values": {"sequence_parallel": 4},
    "a loss of whole trajectories": {"sequence_parallel": 2, "loss": "gspo"},
    "shared prefixes": {"sequence_parallel": 2, "share_prefixes": True},
    "a correction of whole trajectories": {
        "sequence_parallel": 2,
        "corrections": ({"name": "truncate", "options": {"level": "sequence"}},),
    },
}


class Seen(NamedTuple):
    metrics: dict[str, float]
    logprobs: np.ndarray
    weights: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def model(tiny_qwen3) -> Path:
    return tiny_qwen3(tie_word_embeddings=False)


def _config(model: Path, **options: object) -> LearnerConfig:
    """The update is then g / (|g| + 1): equal weights mean equal gradients."""
    plain: dict[str, object] = {"device": "cpu", "lr": 1.0, "eps": 1.0, "grad_clip": None, "token_budget": 80}
    return LearnerConfig(model=str(model), **(plain | options))  # type: ignore[arg-type]


def _batch() -> TrainBatch:
    """Three groups of three trajectories with a prompt of their own, and one of two tokens."""
    rng = np.random.default_rng(0)
    samples = []
    for group in range(3):
        prompt = rng.integers(0, 64, 15)
        for _ in range(3):
            ids = np.concatenate([prompt, rng.integers(0, 64, rng.integers(4, 50))])
            mask = rng.random(len(ids)) < 0.5
            mask[:15], mask[-1] = False, True
            samples.append(_sample(ids, mask, rng, group=f"group {group}"))
    samples.append(_sample(np.array([1, 2]), np.array([False, True]), rng, group="short"))
    return TrainBatch(samples)


def _sample(ids: np.ndarray, mask: np.ndarray, rng: np.random.Generator, *, group: str) -> Sample:
    logprobs = np.where(mask, rng.normal(-4.1, 0.3, len(ids)), 0).astype(np.float32)
    versions = np.zeros(len(ids), np.int32)
    return Sample(ids.astype(np.int32), mask, logprobs, versions, float(rng.normal()), group_id=group)


async def _seen(learner: Learner) -> Seen:
    weights: dict[str, torch.Tensor] = {}

    class Engine:
        async def update_weights(self, published, version: int) -> None:
            weights.update({name: tensor.clone() for name, tensor in published.tensors()})

    try:
        logprobs = learner.logprobs(_batch().samples)
        metrics = learner.step(_batch())
        await learner.publish(Engine(), 1)  # type: ignore[arg-type]
    finally:
        learner.close()
    return Seen(metrics, np.concatenate(logprobs), weights)


@pytest.fixture(scope="module")
async def expected(model: Path) -> dict[str, Seen]:
    """Return the results of one rank."""
    options = {name: case | {"sequence_parallel": 1} for name, case in CASES.items()}
    return {name: await _seen(create(_config(model, **case))) for name, case in options.items()}


@pytest.fixture(scope="module")
def ranks(expected: dict[str, Seen]) -> Iterator[LearnerRanks]:
    """Start ranks for all learners of this file."""
    ranks = LearnerRanks(RANKS, "cpu")
    yield ranks
    ranks.close()


@pytest.mark.parametrize("name", CASES)
async def test_sequence_parallel_ranks_match_single_rank(
    name: str, model: Path, expected: dict[str, Seen], ranks: LearnerRanks
):
    got, want = await _seen(create(_config(model, ranks=RANKS, **CASES[name]), ranks)), expected[name]
    np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-5)
    timed = ("seconds/", "tokens_per_second", "flops_per_second", "balance")
    assert got.metrics.keys() == want.metrics.keys()
    for key in want.metrics:
        if not key.startswith(timed) and not (key == "computed_tokens" and "prefixes" in name):
            assert got.metrics[key] == pytest.approx(want.metrics[key], rel=1e-5, abs=1e-7), key
    for key, tensor in want.weights.items():
        torch.testing.assert_close(got.weights[key], tensor, rtol=1e-4, atol=2e-6)


def test_indivisible_head_count_raises_with_the_numbers(tiny_qwen3, ranks: LearnerRanks):
    folder = tiny_qwen3(num_attention_heads=6, num_key_value_heads=3)
    with pytest.raises(UserError, match=r"cannot divide 6 heads and 3 of keys and values. This model supports 3, 6\."):
        create(_config(folder, ranks=RANKS, sequence_parallel=4), ranks)
    with pytest.raises(UserError, match=r"sequence_parallel is 3 but learner.ranks is 4"):
        create(_config(folder, ranks=RANKS, sequence_parallel=3), ranks)
