"""The warm-up of each small run, for two steps: from its start model through its traces to a model that a run loads."""

from pathlib import Path

import pytest

from agentloop.api.recipe import load_fine_tuning_config
from agentloop.recipes.deepeyes import tiny_model
from agentloop.recipes.self_play.tiny_task import build_start
from agentloop.recipes.tiny.model import build_model
from agentloop.recipes.tiny.traces import rows
from agentloop.rendering import renderer_for
from agentloop.trainer.fine_tuning.train import fine_tune
from agentloop.trainer.run.model_folder import locate_model

RECIPES = Path(__file__).parents[2] / "recipes"
BUILDERS = {"tiny": build_model, "chain": build_model, "deepeyes": tiny_model.build_model, "self_play": build_start}
"""How the start models with random weights are built. The other warm-ups start from the checkpoint of tiny."""
CONFIGS = {path.parent.name: path for path in [*RECIPES.glob("*/tiny_sft.yaml"), RECIPES / "tiny" / "sft.yaml"]}


def test_every_shipped_checkpoint_has_a_warm_up():
    assert set(CONFIGS) == {path.parent.name for path in RECIPES.glob("*/checkpoint")}


def test_first_rows_of_a_batch_show_the_tools():
    shown = ["tools" not in row for row in rows(64)]
    assert shown == ([True] * 4 + [False] * 28) * 2
    assert list(rows(3, seed=1)) == list(rows(3, seed=1)) != list(rows(3, seed=2))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(set(CONFIGS) - {"reasoning_gym"}), "chain"])
async def test_warm_up_lowers_the_loss(name, tmp_path):
    await train_three_steps(name, tmp_path)


@pytest.mark.slow
async def test_warm_up_of_reasoning_gym_lowers_the_loss(tmp_path, installed_env):
    installed_env("reasoning_gym")
    await train_three_steps("reasoning_gym", tmp_path)


async def train_three_steps(name, tmp_path):
    config = CONFIGS.get(name, RECIPES / name / "sft.yaml")
    model = BUILDERS[name](tmp_path / "start") if name in BUILDERS else RECIPES / "tiny" / "checkpoint"
    changes = [
        f"model={model}",
        "data.train_options.num_rows=24",
        "batch_size=8",
        "learner.compute_dtype=float32",
        "learner.device=cpu",
        "learner.warmup_updates=0",
        "run.loggers=[]",
    ]
    run = await fine_tune(load_fine_tuning_config(str(config), changes, "sft"), tmp_path / "run")
    losses = [line["learner/loss"] for line in run.read_metrics()]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert renderer_for(locate_model(str(run.root))).render_prompt([{"role": "user", "content": "Hello."}])
