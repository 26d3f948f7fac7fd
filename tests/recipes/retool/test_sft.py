import random
from pathlib import Path

import pytest

from agentloop.api.recipe import load_fine_tuning_config
from agentloop.recipes.hub_data import write_rows
from agentloop.recipes.retool.tiny_task import cold_start_trace
from agentloop.trainer.fine_tuning.train import fine_tune

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).parents[3] / "recipes" / "retool"
START = RECIPE.parent / "tiny" / "checkpoint"


async def test_cold_start_lowers_the_loss(tmp_path):
    rng = random.Random(0)
    write_rows(tmp_path / "sft.jsonl", [{"messages": cold_start_trace(rng)} for _ in range(12)])
    changes = [
        f"model={START}",
        f"data.train={tmp_path / 'sft.jsonl'}",
        "data.max_tokens=1024",
        "batch_size=4",
        "learner.lr=1e-3",
        "learner.warmup_updates=0",
        "learner.compute_dtype=float32",
        "learner.device=cpu",
        "run.epochs=3",
    ]
    folder = await fine_tune(load_fine_tuning_config(str(RECIPE), changes, "sft"), tmp_path / "run")
    losses = [line["learner/loss"] for line in folder.read_metrics()]
    assert len(losses) == 9
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])
    assert (folder.model / "model.safetensors").is_file()
