"""The model that a run leaves answers as in the run: greedy turns of the last evaluation, again with transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.api.recipe import load_run_config
from agentloop.trainer.run.train import train
from agentloop.types.trajectory import SegmentKind
from agentloop.types.trajectory_io import read_jsonl

pytestmark = pytest.mark.slow

CHECKPOINT = Path(__file__).parents[3] / "recipes" / "tiny" / "checkpoint"
OPTIONS = {
    "hf": "{device: cpu, max_model_len: 384}",
    "vllm": "{dtype: float32, max_model_len: 384, enforce_eager: true}",
}


def greedy(model, prompt, length):
    with torch.no_grad():
        ids = torch.tensor([prompt])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False)
    return made[0, len(prompt) :].tolist()


@pytest.mark.parametrize("engine", ["hf", pytest.param("vllm", marks=pytest.mark.vllm)])
async def test_greedy_turns_of_the_run_are_those_of_plain_transformers(engine, tmp_path):
    changes = [
        f"engine.name={engine}",
        f"engine.options={OPTIONS[engine]}",
        "algorithm.groups_per_step=2",
        "learner.lr=4e-3",
        "learner.lr_schedule=constant",
        "learner.warmup_updates=0",
        "learner.save_dtype=float32",  # as in the run: a rounded model may decide a tie differently
        "data.eval_limit=6",
        "eval.every=2",
        "eval.temperature=0",
        "run.steps=2",
        "run.loggers=[]",
    ]
    folder = await train(load_run_config("tiny", changes), tmp_path / "run")
    trained = AutoModelForCausalLM.from_pretrained(folder.model)
    start = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    num_turns = num_changed = 0
    for trajectory in read_jsonl(folder.trajectories / "eval_000002.jsonl.gz"):
        for segment in trajectory.segments:
            if segment.kind is SegmentKind.SAMPLED:
                prompt = trajectory.token_ids[: segment.start].tolist()
                turn = trajectory.token_ids[segment.start : segment.end].tolist()
                assert greedy(trained, prompt, len(turn)) == turn
                num_turns += 1
                num_changed += greedy(start, prompt, len(turn)) != turn
    assert num_turns >= 6
    assert num_changed > 0, "training changed no answer, so the test would pass with the start model"
