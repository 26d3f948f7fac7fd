"""Runs of algorithms that need more than the rewards of a group."""

import math

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.run.train import train

pytestmark = pytest.mark.slow


async def _run(sums, folder, algorithm, *overrides):
    known = [f"algorithm={algorithm}", "eval.every=0", f"learner.reference={sums / 'model'}", *overrides]
    return await train(load_config(RunConfig, sums / "config.yaml", known), sums / folder)


def _without_time(folder):
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in folder.read_metrics()]


@pytest.mark.parametrize(
    "algorithm",
    [
        "{advantage: remax, group_size: 1, groups_per_step: 6}",
        "{advantage: reinforce_pp, group_size: 2, groups_per_step: 3, kl_in_reward: 0.01}",
        "{advantage: gigpo, group_size: 4, groups_per_step: 2}",
    ],
)
async def test_each_algorithm_trains(sums, algorithm):
    folder = await _run(sums, "run", algorithm, "run.steps=2")
    assert all(line["learner/grad_norm"] > 0 for line in folder.read_metrics())


async def test_prime_learns_a_process_reward_and_goes_on_exactly(sums):
    prime = "{advantage: prime, group_size: 4, groups_per_step: 3}"
    settings = ["process_reward={lr: 1e-2, beta: 1.0}"]
    lines = _without_time(await _run(sums, "whole", prime, *settings, "run.steps=4"))
    assert all(line["learner/grad_norm"] > 0 for line in lines)
    # At first the model is its own reference, and says nothing: every score is 0.
    assert lines[0]["process_reward/loss"] == pytest.approx(math.log(2), rel=1e-5)
    assert lines[1]["process_reward/loss"] != pytest.approx(math.log(2), rel=1e-3)
    assert 0 < lines[1]["process_reward/accuracy"] <= 1

    await _run(sums, "parts", prime, *settings, "run.steps=2")
    assert _without_time(await _run(sums, "parts", prime, *settings, "run.steps=4")) == lines


async def test_a_policy_is_closed_whose_critic_cannot_be_loaded(sums, monkeypatch):
    closed = []
    monkeypatch.setattr(FsdpLearner, "close", lambda self: closed.append(self))
    ppo = "{advantage: gae, group_size: 2, groups_per_step: 4}"
    (sums / "empty").mkdir()
    (sums / "empty/config.json").write_text("{}")
    with pytest.raises(UserError, match="/empty"):
        await _run(sums, "run", ppo, f"critic.model={sums}/empty")
    assert len(closed) == 1


async def test_the_model_of_the_run_may_be_named_as_its_reference(sums, monkeypatch):
    """The name may be that of a hub model, which the run has in a local folder."""
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, ignore_patterns: sums / "model")
    plain = "{group_size: 4, groups_per_step: 3}"
    lines = [
        _without_time(await _run(sums, name, plain, "run.steps=1", "learner.kl_coef=0.1", *settings))
        for name, settings in (("own", []), ("named", ["model=org/name", "learner.reference=org/name"]))
    ]
    assert lines[0] == lines[1]


async def test_ppo_with_a_critic_learns_and_goes_on_exactly(sums):
    ppo = "{advantage: gae, group_size: 2, groups_per_step: 4}"
    settings = ["critic={lr: 1e-2, mini_batches: 2, warmup_steps: 1}", "learner.mini_batches=2"]
    lines = _without_time(await _run(sums, "whole", ppo, *settings, "run.steps=4"))
    # The first step trains the critic only.
    assert ["learner/grad_norm" in line for line in lines] == [False, True, True, True]
    assert all(line["critic/grad_norm"] > 0 for line in lines)
    # Values were 0 all over.
    assert lines[0]["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert lines[1]["critic/explained_variance"] != pytest.approx(0.0, abs=1e-6)

    await _run(sums, "parts", ppo, *settings, "run.steps=2")
    assert _without_time(await _run(sums, "parts", ppo, *settings, "run.steps=4")) == lines
