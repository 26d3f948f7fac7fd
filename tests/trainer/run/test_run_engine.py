"""The run loop with an engine that really samples: what is published is what the next step samples with."""

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.run.train import train

pytestmark = pytest.mark.slow

HF = ["engine.name=hf", "engine.options={device: cpu}", "limits.max_turn_tokens=8", "eval.every=0", "run.loggers=[]"]


async def test_the_engine_samples_with_the_weights_that_the_learner_has(sums):
    (sums / "reward.py").write_text("def reward(trajectory, task):\n    return sum(trajectory.ids) % 7\n")
    config = load_config(
        RunConfig, sums / "config.yaml", [*HF, f"env.reward={sums}/reward.py:reward", "run.steps=3", "learner.lr=1e-2"]
    )
    lines = (await train(config, sums / "run")).read_metrics()
    assert [line["policy_version"] for line in lines] == [1, 2, 3]
    # Weights that move this much and were not published would differ by orders of magnitude more.
    assert all(line["learner/grad_norm"] > 0.01 for line in lines)
    assert all(line["learner/logprob_diff"] < 1e-4 for line in lines)


async def test_a_resumed_run_samples_with_the_weights_of_the_checkpoint(sums):
    (sums / "reward.py").write_text("def reward(trajectory, task):\n    return sum(trajectory.ids) % 7\n")
    overrides = [*HF, f"env.reward={sums}/reward.py:reward", "learner.lr=1e-2"]
    await train(load_config(RunConfig, sums / "config.yaml", [*overrides, "run.steps=1"]), sums / "run")
    folder = await train(load_config(RunConfig, sums / "config.yaml", [*overrides, "run.steps=2"]), sums / "run")
    assert [line["step"] for line in folder.read_metrics()] == [1, 2]
    assert folder.read_metrics()[1]["learner/logprob_diff"] < 1e-4


async def test_a_resumed_run_compares_its_engine_again(sums):
    (sums / "reward.py").write_text("def reward(trajectory, task):\n    return sum(trajectory.ids) % 7\n")
    overrides = [*HF, f"env.reward={sums}/reward.py:reward"]
    await train(load_config(RunConfig, sums / "config.yaml", [*overrides, "run.steps=1"]), sums / "run")
    strict = [*overrides, "run.steps=2", "run.max_logprob_diff=1e-9"]
    with pytest.raises(UserError, match="nats on average in step 2"):
        await train(load_config(RunConfig, sums / "config.yaml", strict), sums / "run")


async def test_an_engine_with_other_weights_ends_the_run_before_a_checkpoint(sums):
    (sums / "reward.py").write_text("def reward(trajectory, task):\n    return sum(trajectory.ids) % 7\n")
    config = load_config(
        RunConfig,
        sums / "config.yaml",
        [*HF, f"env.reward={sums}/reward.py:reward", "run.steps=2", "run.max_logprob_diff=1e-9"],
    )
    with pytest.raises(UserError, match=r"engine 'hf' and of the learner differ by .* nats on average in step 1"):
        await train(config, sums / "run")
    assert not list((sums / "run" / "checkpoints").glob("step_*"))


async def test_the_engine_is_compared_after_the_critic_has_warmed_up(sums):
    overrides = [*HF, "algorithm.advantage=gae", "critic.warmup_steps=1", "run.steps=2", "run.max_logprob_diff=1e-9"]
    with pytest.raises(UserError, match="nats on average in step 2"):
        await train(load_config(RunConfig, sums / "config.yaml", overrides), sums / "run")
