"""Gradients of groups that have ended, while others of the same step play: nothing of what is learned changes."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.config.learner import LearnerConfig
from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.losses import Aggregation
from agentloop.trainer.run.run import train
from agentloop.trainer.schedule.observers import Observer
from tests.support.tiny import random_batch

_TRUNCATED = ({"name": "truncate", "options": {"cap": 2.0}},)
_OF_THE_CLOCK = ("seconds/", "tokens_per_second", "flops_per_second", "balance", "early_tokens")


@pytest.fixture(scope="module")
def model(tiny_qwen3) -> Path:
    return tiny_qwen3()


def _learner(model: Path, **options: object) -> FsdpLearner:
    """The update is g / (|g| + 1), smooth in the gradient: equal weights mean equal gradients."""
    known = {"lr": 1.0, "eps": 1.0, "grad_clip": 0.5, "token_budget": 60, "early_gradients": True, "device": "cpu"}
    return FsdpLearner(LearnerConfig(model=str(model), **(known | options)))


def _train(learner: FsdpLearner, parts: list[TrainBatch]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    for part in parts[:-1]:
        learner.accumulate(part)
    metrics = learner.step(parts[-1])
    return metrics, {name: weight.clone() for name, weight in learner.weights()}


def _assert_same(got, want) -> None:
    for name, value in want[0].items():
        if not name.startswith(_OF_THE_CLOCK):
            assert got[0][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    for name, weight in want[1].items():
        torch.testing.assert_close(got[1][name], weight, rtol=1e-4, atol=2e-6)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(Aggregation), st.permutations(range(8)), st.lists(st.integers(0, 8), max_size=4))
def test_a_batch_in_parts_is_the_whole_batch_however_its_episodes_arrive(model, aggregation, order, cuts):
    batch = random_batch(8)
    options = {"aggregation": aggregation, "corrections": _TRUNCATED, "kl_coef": 0.1, "entropy_bonus": 0.01}
    ends = [0, *sorted(cuts), 8]
    parts = [TrainBatch([batch.samples[place] for place in order[start:end]]) for start, end in pairwise(ends)]
    _assert_same(_train(_learner(model, **options), parts), _train(_learner(model, **options), [batch]))


def test_parts_without_advantage_count_and_cost_nothing(model):
    batch = random_batch(6)
    silent = TrainBatch([replace(sample, advantage=0.0) for sample in batch.samples[:4]])
    loud = TrainBatch(batch.samples[4:])
    metrics, weights = _train(_learner(model), [silent, loud])
    _assert_same((metrics, weights), _train(_learner(model), [TrainBatch([*silent.samples, *loud.samples])]))
    assert metrics["computed_tokens"] == loud.num_tokens
    # Where no episode has any, those that come last say how the policy is.
    metrics, _ = _train(_learner(model), [silent, TrainBatch(silent.samples[:1])])
    assert metrics["computed_tokens"] == len(silent.samples[0])
    assert metrics["updates"] == 1


def test_the_metrics_of_a_step_are_of_all_its_parts(model):
    batch = random_batch(6)
    learner = _learner(model)
    metrics, _ = _train(learner, [TrainBatch(batch.samples[:5]), TrainBatch(batch.samples[5:])])
    assert metrics["num_trajectories"] == 6
    assert metrics["num_tokens"] == batch.num_tokens
    assert metrics["early_tokens"] == pytest.approx(1 - len(batch.samples[5]) / batch.num_tokens)
    assert metrics["seconds/early"] > 0
    assert "seconds/early" not in learner.step(batch)


def test_nothing_is_left_for_the_last_part_or_for_the_next_step(model):
    batch = random_batch(6)
    in_parts, whole = _learner(model), _learner(model)
    for seed in (0, 1):
        batch = random_batch(6, seed=seed)
        _assert_same(_train(in_parts, [batch, TrainBatch([])]), _train(whole, [batch]))


def test_a_gradient_that_is_not_finite_is_dropped_with_all_parts(model, caplog):
    batch = random_batch(4)
    batch.samples[0].logprobs[batch.samples[0].loss_mask] = np.nan
    named = [replace(sample, trajectory_id=f"t{place}") for place, sample in enumerate(batch.samples)]
    learner = _learner(model, token_budget=40)
    before = {name: weight.clone() for name, weight in learner.weights()}
    metrics, weights = _train(learner, [TrainBatch(named[:1]), TrainBatch(named[1:])])
    assert metrics["updates_skipped"] == 1
    assert all(torch.equal(weights[name], weight) for name, weight in before.items())
    assert "t0" in caplog.text
    assert "t3" not in caplog.text


async def _run(sums: Path, folder: str, *overrides: str, observer: Observer | None = None) -> list[dict[str, float]]:
    """Groups are played one after the other, so that the first ones wait for the last."""
    known = ["eval.every=0", "run.loggers=[]", "engine.max_concurrency=4", *overrides]
    done = await train(load_config(RunConfig, sums / "config.yaml", known), sums / folder, observer)
    return done.read_metrics()


async def test_a_run_learns_the_same_and_is_done_with_most_of_a_step_before_its_end(sums):
    whole = await _run(sums, "whole", "run.steps=3")
    early = await _run(sums, "early", "run.steps=3", "learner.early_gradients=true")
    assert all(0 < line["learner/early_tokens"] < 1 for line in early)
    assert all(0 < line["time/early"] < line["time/rollout"] for line in early)
    for one, other in zip(whole, early, strict=True):
        assert other.keys() - one.keys() == {"time/early", "time/learner_early", "learner/early_tokens"}
        for name, value in one.items():
            if not name.startswith(("time/", "learner/balance")):
                assert other[name] == pytest.approx(value, rel=1e-5, abs=1e-9), name


class _StopsIn(Observer):
    """The rollout of a step, when some of its gradients are there."""

    def __init__(self, step: int, num_episodes: int) -> None:
        self._step, self._left = step, num_episodes

    def on_trajectory(self, step, trajectory):
        self._left -= step == self._step
        if not self._left:
            raise RuntimeError("stop")


async def test_a_step_that_was_interrupted_between_its_parts_is_made_again(sums):
    settings = ["learner.early_gradients=true", "run.save_every=1", "run.steps=4"]
    with pytest.raises(ExceptionGroup):
        await _run(sums, "run", *settings, observer=_StopsIn(step=3, num_episodes=11))
    resumed = await _run(sums, "run", *settings)
    whole = await _run(sums, "whole", "run.steps=4")
    assert [line["step"] for line in resumed] == [1, 2, 3, 4]
    for name in ("learner/loss", "learner/grad_norm", "learner/entropy"):
        assert [line[name] for line in resumed] == pytest.approx([line[name] for line in whole], rel=1e-5)


async def test_it_works_in_runs_that_overlap(sums):
    partial = ["staleness={mode: partial, max_staleness: 2}", "learner.corrections=[truncate]"]
    lines = await _run(sums, "run", *partial, "learner.early_gradients=true", "learner.token_budget=512")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert max(line["staleness/max"] for line in lines) <= 2
    assert max(line["learner/early_tokens"] for line in lines) > 0
    assert lines[-1]["queue/admitted"] == lines[-1]["queue/trained"] == 6 * 3 * 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.advantage=reinforce_pp", r"not known before all groups.*set advantage to one of dr_grpo"),
        ("learner.mini_batches=2", r"episodes that end first.*Set mini_batches=1"),
        ("placement.sleep=true", r"the learner sleeps while episodes run"),
        ("learner.backend=megatron", r"only fsdp has early_gradients"),
    ],
)
async def test_what_it_cannot_go_with_is_refused(sums, override, message):
    with pytest.raises(UserError, match=message):
        await _run(sums, "run", "learner.early_gradients=true", override)
