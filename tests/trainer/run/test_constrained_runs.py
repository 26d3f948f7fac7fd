"""A run whose agent demands JSON: turns have grammars, the learner agrees with the engine, and the run resumes."""

import json
from pathlib import Path

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.recipes import tiny
from agentloop.trainer.run.train import train
from agentloop.types.trajectory_io import read_jsonl

pytestmark = pytest.mark.slow

_RECIPE = Path(tiny.__file__).parent / "config.yaml"
AGENT = """
from openai import AsyncOpenAI

SUM = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 999}}, "required": ["sum"]}


async def solve(task, model):
    async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
        form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SUM}}
        answer = await client.chat.completions.create(model="m", messages=task["messages"], response_format=form)
    return float(len(answer.choices[0].message.content) % 5)
"""


@pytest.fixture
def run(tmp_path):
    """Call as run(name, steps): train, or resume, in the folder of this name."""
    (tmp_path / "agent.py").write_text(AGENT)

    async def play(name, steps):
        overrides = [
            f"env={{factory: agent, options: {{agent: '{tmp_path / 'agent.py'}:solve'}}}}",
            f"run.steps={steps}",
            "run.save_every=1",
            "run.loggers=[]",
            "eval.every=0",
            "engine.max_concurrency=1",
            "learner.warmup_updates=0",
            "learner.lr_schedule=constant",
            "algorithm={group_size: 2, groups_per_step: 2}",
        ]
        return await train(load_config(RunConfig, _RECIPE, overrides), tmp_path / name)

    return play


def played(folder, step):
    return list(read_jsonl(folder.trajectories / f"step_{step:06}.jsonl.gz"))


async def test_a_run_with_constrained_turns_resumes_with_the_same_turns(run):
    whole = await run("whole", 2)
    await run("parts", 1)
    parts = await run("parts", 2)
    for step in (1, 2):
        trajectories = played(whole, step)
        turns = [turn for each in trajectories for turn in each.sampled_segments()]
        assert len(turns) == len(trajectories) == 4
        assert all(json.loads(turn.grammar.text)["type"] == "structural_tag" for turn in turns)
        for one, other in zip(trajectories, played(parts, step), strict=True):
            assert one.token_ids.tolist() == other.token_ids.tolist()
            assert one.logprobs.tolist() == other.logprobs.tolist()
            assert [turn.grammar for turn in one.sampled_segments()] == [
                turn.grammar for turn in other.sampled_segments()
            ]
    for line in whole.read_metrics():
        assert line["learner/logprob_diff_max"] < 1e-3
