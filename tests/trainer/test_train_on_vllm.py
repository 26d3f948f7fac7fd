"""The tiny recipe on vLLM: it samples, the sandbox runs what it wrote, the learner trains on exactly its ids."""

import pytest

from agentloop.cli.recipe import load_run_config
from agentloop.trainer.run import train
from agentloop.trajectory_io import read_jsonl

pytestmark = pytest.mark.vllm


async def test_learner_and_vllm_agree_on_what_was_sampled_before_and_after_updates(tmp_path):
    config = load_run_config(
        "tiny",
        [
            "engine.name=vllm",
            "engine.options={dtype: bfloat16, max_model_len: 384, enforce_eager: true}",
            "learner.compute_dtype=bfloat16",
            "algorithm.groups_per_step=4",
            "algorithm.group_size=4",
            "learner.warmup_updates=0",
            "run.steps=3",
            "run.loggers=[]",
            "eval.every=0",
        ],
    )
    folder = await train(config, tmp_path / "run")
    steps = folder.read_metrics()
    assert [step["policy_version"] for step in steps] == [1, 2, 3]
    for step in steps:
        # Mean over the sampled tokens, bfloat16 on both sides.
        assert 0 < step["learner/logprob_diff"] < 0.02, step
        assert step["rollout/tool_call_rate"] > 0
    for number in (1, 2, 3):
        for trajectory in read_jsonl(folder.trajectories / f"step_{number:06d}.jsonl.gz"):
            assert set(trajectory.versions[trajectory.loss_mask]) == {number - 1}
