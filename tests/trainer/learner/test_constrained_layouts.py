"""Constrained turns on two ranks, with both backends: trajectories come from a file, and masks follow their tokens."""

from pathlib import Path

import pytest
import torch

from agentloop.registry.named_objects import load_object
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.types.trajectory_io import write_jsonl
from tests.trainer.learner.test_constrained_turns import learner, samples_of, tokenizer, trajectories  # noqa: F401

pytestmark = pytest.mark.slow

_SCRIPT = Path(__file__).parent / "constrained_on_ranks.py"
_CASES = load_object(f"{_SCRIPT}:CASES", "dictionary")


@pytest.fixture(scope="module")
def expected(trajectories):  # noqa: F811
    """The trajectories, and what one rank computes for them."""
    samples = samples_of(trajectories)
    one = learner()
    logprobs = one.logprobs(samples)
    one.step(TrainBatch(samples))
    return trajectories, logprobs, {name: value.clone() for name, value in one.weights()}


@pytest.fixture(scope="module")
def results(expected, tmp_path_factory, run_on_ranks):
    folder = tmp_path_factory.mktemp("constrained")
    write_jsonl(folder / "turns.jsonl", expected[0])
    run_on_ranks(2, _SCRIPT, folder)
    return folder


@pytest.mark.parametrize("name", _CASES)
def test_each_layout_equals_one_rank_and_the_engine(name, results, expected):
    played, logprobs, weights = expected
    for rank in range(2):
        got, trained = torch.load(results / f"{name}-{rank}.pt", weights_only=True)
        for ours, one, trajectory in zip(got, logprobs, played, strict=True):
            torch.testing.assert_close(ours, torch.from_numpy(one), rtol=0, atol=1e-5)
            sampled = torch.from_numpy(trajectory.logprobs[trajectory.loss_mask])
            torch.testing.assert_close(ours, sampled, rtol=0, atol=1e-4)
        assert trained.keys() == weights.keys()
        for key, value in weights.items():
            torch.testing.assert_close(trained[key], value, rtol=1e-4, atol=1e-5, msg=key)
