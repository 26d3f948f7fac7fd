"""The tiny recipe on vLLM: it samples, the sandbox runs what it wrote, the learner trains on exactly its ids."""

import asyncio
from pathlib import Path
from typing import Annotated

import pytest

from agentloop.api.recipe import load_run_config
from agentloop.tools.base import ToolContext, ToolResult
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.trainer.run.train import train
from agentloop.types.trajectory_io import read_jsonl

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def tiny_on_vllm(*overrides):
    return load_run_config(
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
            *overrides,
        ],
    )


async def test_learner_and_vllm_compute_equal_logprobs_before_and_after_updates(tmp_path):
    folder = await train(tiny_on_vllm(), tmp_path / "run")
    steps = folder.read_metrics()
    assert [step["policy_version"] for step in steps] == [1, 2, 3]
    for step in steps:
        # Mean over the sampled tokens, bfloat16 on both sides.
        assert 0 < step["learner/logprob_diff"] < 0.02, step
        assert step["rollout/tool_call_rate"] > 0
    for number in (1, 2, 3):
        for trajectory in read_jsonl(folder.trajectories / f"step_{number:06d}.jsonl.gz"):
            assert set(trajectory.versions[trajectory.loss_mask]) == {number - 1}


class LateInterpreter(CodeInterpreter):
    """Every second group gets its first answers when a step has been made: what is sampled then is of newer weights."""

    name = "code_interpreter"
    description = CodeInterpreter.description

    def __init__(self, metrics: str) -> None:
        super().__init__()
        self._metrics = Path(metrics)

    async def call(self, ctx: ToolContext, code: Annotated[str, "Python code to run"]) -> ToolResult:
        group = int(ctx.trajectory_id.split("-")[1])
        while group % 2 and not self._metrics.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return await super().call(ctx, code)


async def test_weights_are_swapped_while_vllm_samples(tmp_path):
    overrides = ["staleness={mode: partial, max_staleness: 2}", "learner.corrections=[truncate]"]
    metrics = tmp_path / "run" / "metrics.jsonl"
    tools = f"env.tools=[{{name: '{__file__}:LateInterpreter', options: {{metrics: {metrics}}}}}]"
    folder = await train(tiny_on_vllm(*overrides, tools), tmp_path / "run")
    steps = folder.read_metrics()
    assert [step["policy_version"] for step in steps] == [1, 2, 3]
    assert 1 <= max(step["staleness/max"] for step in steps) <= 2
    assert max(step["staleness/mixed"] for step in steps) > 0
    assert steps[-1]["queue/admitted"] == steps[-1]["queue/trained"] == 3 * 4 * 4
    # On-policy the two differ by bfloat16; the weights of two steps before are still near.
    assert all(0 < step["learner/logprob_diff"] < 0.1 for step in steps), steps
    for number in (1, 2, 3):
        for trajectory in read_jsonl(folder.trajectories / f"step_{number:06d}.jsonl.gz"):
            versions = trajectory.versions[trajectory.loss_mask]
            assert (versions[1:] >= versions[:-1]).all(), "later tokens are of later weights"
