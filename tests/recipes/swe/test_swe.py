"""The recipe swe: a dry run on a task that `agentloop tasks swe` has made, and what it says without tasks."""

import asyncio
import shutil
from pathlib import Path

import pytest

from agentloop import boxes
from agentloop.cli import main
from agentloop.envs.harbor.making.swe.making import SweOptions, swe_tasks
from tests.envs.harbor.making.swe.conftest import shapes

__all__ = ["shapes"]

pytestmark = pytest.mark.slow

MODEL = Path(__file__).parents[3] / "recipes/tiny/checkpoint"

SMALL = [f"model={MODEL}", "engine.name=hf", "engine.options={device: cpu}", "learner.device=cpu"]
SMALL += ["limits.max_tokens=1024", "limits.max_turn_tokens=64", "learner.token_budget=1024"]


async def make_task(package, folder):
    provider = boxes.create("rootfs")
    await provider.open()
    try:
        async for made in swe_tasks(str(package), folder, 1, provider, SweOptions(runner="unittest")):
            return made
    finally:
        await provider.close()


def dry_run(folder, capsys, *more):
    overrides = [f"data.train_options.folder={folder}/train", f"data.eval_options.folder={folder}/test", *more]
    with pytest.raises(SystemExit) as ended:
        main(["train", "swe", "--dry-run", *SMALL, *overrides])
    return ended.value.code, capsys.readouterr()


def test_a_dry_run_plays_an_episode_on_a_task(shapes, tmp_path, capsys):
    made = asyncio.run(make_task(shapes, tmp_path / "train"))
    shutil.copytree(made, tmp_path / "test" / made.name)
    code, shown = dry_run(tmp_path, capsys, "env.options.provider=rootfs")
    assert code == 0, shown.err
    assert "1 to train on, 1 held out" in shown.out
    assert "ended as completed, reward 0" in shown.out


def test_missing_tasks_are_one_clear_error(tmp_path, capsys):
    code, shown = dry_run(tmp_path, capsys)
    assert code == 2
    assert f"{tmp_path}/train" in shown.err
    assert "Traceback" not in shown.err
