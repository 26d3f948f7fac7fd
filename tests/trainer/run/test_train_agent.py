"""The tiny task played by agents of other people's libraries, and trained like any other run."""

import json
from pathlib import Path

import pytest

from agentloop.api.recipe import load_run_config
from agentloop.config.resolved import Facts, resolve
from agentloop.episodes.setup import RolloutSetup, make_engine
from agentloop.trainer.run.train import train
from agentloop.types.requests import RolloutRequest
from agentloop.types.trajectory import SegmentKind
from agentloop.types.trajectory_io import read_jsonl

pytestmark = pytest.mark.slow

AGENTS = Path(__file__).parents[2] / "agentloop" / "gateway" / "agents"
TINY = ["env.factory=agent", "env.tools=[]", "run.loggers=[]", "engine.max_concurrency=16"]


async def test_an_agent_written_with_the_openai_client_is_trained(tmp_path):
    config = load_run_config(
        "tiny",
        [
            *TINY,
            f"env.options={{agent: '{AGENTS / 'calculator_agent.py'}:solve'}}",
            "algorithm.groups_per_step=2",
            "run.steps=2",
            "eval.every=0",
            "learner.lr_schedule=constant",
        ],
    )
    folder = await train(config, tmp_path / "run")
    for number, step in enumerate(folder.read_metrics(), 1):
        assert step["failures/episodes"] == 0
        assert step["reward/std"] > 0, "equal rewards would teach nothing"
        assert step["learner/grad_norm"] > 0
        # The learner sees the very tokens that were sampled, under the weights that sampled them.
        assert step["learner/logprob_diff"] < 1e-4
        trajectories = list(read_jsonl(folder.trajectories / f"step_{number:06d}.jsonl.gz"))
        assert len(trajectories) == 2 * config.algorithm.group_size
        for trajectory in trajectories:
            assert trajectory.branches == []  # the agent only appends
            assert set(trajectory.versions[trajectory.loss_mask]) == {number - 1}
        assert any(_used_its_tool(trajectory) for trajectory in trajectories)
        # The agent always requests seed=0; the episodes of a group still differ.
        assert len({trajectory.token_ids.tobytes() for trajectory in trajectories}) > 4


async def test_an_agent_on_messages_learns(tmp_path):
    """The benchmark agents_three_seeds measures whole runs."""
    config = load_run_config(
        "tiny",
        [
            *TINY,
            f"env.options={{agent: '{AGENTS / 'calculator_agent.py'}:solve_over_messages'}}",
            "algorithm.groups_per_step=8",
            "data.eval_options.num_rows=60",
            "run.steps=6",
            "eval.every=6",
        ],
    )
    before, *steps = (await train(config, tmp_path / "run")).read_metrics()
    assert all(step["failures/episodes"] == 0 for step in steps)
    after = steps[-1]
    assert after["eval/reward/mean"] > before["eval/reward/mean"] + 0.1


@pytest.mark.parametrize("options", [[], ["--stream"]], ids=["whole", "streamed"])
async def test_a_langgraph_agent_leaves_exact_trajectories(tmp_path, python_with, options):
    python = python_with("langgraph", "langgraph>=1,<2", "langchain-openai>=1,<2")
    command = json.dumps([python, str(AGENTS / "langgraph_agent.py"), *options])
    config = load_run_config("tiny", [*TINY, f"env.options={{command: {command}}}", "engine.max_concurrency=2"])
    episodes = RolloutSetup.load(config, Path(config.model))
    engine = make_engine(resolve(config, Facts(model=Path(config.model))))
    await engine.start()
    try:
        group = await episodes.worker(engine).play(RolloutRequest(group_id="g", row=0, n=2, seed=3))
    finally:
        await engine.close()
    trajectories = group.trajectories
    assert [trajectory.error for trajectory in trajectories] == [None] * 2
    for trajectory in trajectories:
        assert trajectory.branches == []
        assert trajectory.final_text == trajectory.answer
        assert trajectory.reward in (0.0, 1.0)
    assert any(_used_its_tool(trajectory) for trajectory in trajectories)


def _used_its_tool(trajectory):
    kinds = [segment.kind for segment in trajectory.segments]
    return kinds[:5] == [
        SegmentKind.PROMPT, SegmentKind.SAMPLED, SegmentKind.TEMPLATE, SegmentKind.OBSERVATION, SegmentKind.SAMPLED
    ]  # fmt: skip
