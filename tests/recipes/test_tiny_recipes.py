"""Each small run, for a step or two: from the shipped checkpoint through its tools and reward to new weights."""

import json
from pathlib import Path

import pytest

from agentloop.api.recipe import load_run_config
from agentloop.trainer.run.train import train

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
TINY = sorted(path.parent.name for path in RECIPES.glob("*/tiny.yaml"))


def test_tiny_recipes_exist():
    assert {
        "retool",
        "search_r1",
        "text_to_sql",
        "frozen_lake",
        "deepeyes",
        "self_play",
        "terminal",
        "reasoning_gym",
    } <= set(TINY)


@pytest.mark.parametrize("name", [name for name in TINY if name != "reasoning_gym"])
async def test_tiny_recipe_runs_and_updates_weights(name, tmp_path, monkeypatch):
    await run_two_steps(name, tmp_path, monkeypatch)


async def test_tiny_run_of_reasoning_gym_updates_weights(tmp_path, monkeypatch, installed_env):
    installed_env("reasoning_gym")
    await run_two_steps("reasoning_gym", tmp_path, monkeypatch)


async def run_two_steps(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # databases and indexes go below ~/.cache
    path = str(RECIPES / name / "tiny.yaml")
    groups = max(4, 32 // load_run_config(path, []).algorithm.group_size)
    config = load_run_config(
        path,
        [
            "run.steps=2",
            "eval.every=2",
            "data.eval_limit=16",
            f"algorithm.groups_per_step={groups}",
            "learner.lr_schedule=constant",
            "run.loggers=[]",
        ],
    )
    await train(config, tmp_path / "run")
    before, first, second = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "eval/reward/mean" in before
    assert "eval/reward/mean" in second
    assert before["eval/failed"] == 0
    assert second["eval/failed"] == 0
    for metrics in (first, second):
        assert metrics["failures/episodes"] == 0
        assert metrics["reward/std"] > 0, "equal rewards would teach nothing"
        assert metrics["learner/grad_norm"] > 0
