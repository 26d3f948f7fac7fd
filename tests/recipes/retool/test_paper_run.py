"""The paper's format from traces to better weights: the cold start, then reinforcement learning with paper.yaml."""

import itertools
import json
import random
from pathlib import Path

import pytest

from agentloop.api.recipe import load_fine_tuning_config, load_run_config
from agentloop.recipes.hub_data import write_rows
from agentloop.recipes.retool.paper import FORMAT, PROMPT, turns_of
from agentloop.recipes.tiny.task import OPERATIONS, draw_numbers, question
from agentloop.rendering import renderer_for
from agentloop.trainer.fine_tuning.train import fine_tune
from agentloop.trainer.run.train import train
from agentloop.types.trajectory import SegmentKind
from agentloop.types.trajectory_io import read_jsonl

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[3] / "recipes"
CONFIG = RECIPES / "retool" / "paper.yaml"
START = RECIPES / "tiny" / "checkpoint"


def tasks():
    """Two questions, so few that a short cold start knows them by heart; each with two programs and their outputs."""
    rng = random.Random(0)
    for index, operation in enumerate(OPERATIONS[:2]):
        a, b = draw_numbers(rng, held_out=False)
        asked = PROMPT.format(question=question(operation, "What is the {}?", a, b))
        row = {"id": str(index), "prompt": [{"role": "user", "content": asked}], "answer": str(operation.compute(a, b))}
        yield row, [(each.code.format(a=a, b=b), each.compute(a, b)) for each in OPERATIONS[:2]]


def answered(program, output):
    shown = FORMAT.result.format(output)
    return f"<code>\n```python\n{program}\n```\n</code>{shown}<answer>\n\\boxed{{{output}}}\n</answer>"


def observations(path, renderer):
    """What followed each program, as text."""
    for trajectory in read_jsonl(path):
        for before, after in itertools.pairwise(trajectory.segments):
            if after.kind is SegmentKind.OBSERVATION:
                assert before.kind is SegmentKind.SAMPLED
                ids = trajectory.token_ids
                assert renderer.decode(ids[before.start : before.end].tolist()).endswith("</code>")
                assert not trajectory.loss_mask[after.start : after.end].any()
                yield renderer.decode(ids[after.start : after.end].tolist())


async def test_cold_start_then_reinforcement_learning_improves_the_model(tmp_path):
    rows, traces = [], []
    for row, programs in tasks():
        rows.append(row)
        for program, output in programs:  # one of the two programs is the right one
            traces.append({"messages": [*row["prompt"], *turns_of(answered(program, output))]})
    write_rows(tmp_path / "train.jsonl", rows)
    write_rows(tmp_path / "sft.jsonl", traces)
    changes = [
        f"model={START}",
        f"data.train={tmp_path / 'sft.jsonl'}",
        "data.max_tokens=512",
        "batch_size=4",
        "learner.lr=2e-3",
        "learner.warmup_updates=8",
        "learner.compute_dtype=float32",
        "learner.device=cpu",
        "run.epochs=80",
    ]
    started = await fine_tune(
        load_fine_tuning_config(str(CONFIG.parent / "paper_sft.yaml"), changes, "sft"), tmp_path / "cold"
    )
    model = started.model
    losses = [line["learner/loss"] for line in started.read_metrics()]
    assert losses[-1] < 0.02 * losses[0]
    config = load_run_config(
        str(CONFIG),
        [
            f"model={model}",
            f"data.train={tmp_path / 'train.jsonl'}",
            f"data.eval={tmp_path / 'train.jsonl'}",
            "engine={name: hf, options: {device: cpu, max_model_len: 512}}",
            "limits={max_turns: 3, max_turn_tokens: 96, max_tokens: 512}",
            "sampling.temperature=0.5",  # so short a cold start leaves noise; the two programs stay equally likely
            "algorithm={group_size: 8, groups_per_step: 2}",
            "learner={device: cpu, compute_dtype: float32, lr: 2e-4, mini_batches: 1}",
            "eval={every: 3, samples: 8}",
            "run={steps: 3, loggers: []}",
        ],
    )
    await train(config, tmp_path / "run")
    before, *steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert before["eval/tool_call_rate"] > 0.8
    assert before["eval/failed"] == 0
    for metrics in steps:
        assert metrics["failures/episodes"] == 0
        assert metrics["reward/std"] > 0, "equal rewards would teach nothing"
        assert metrics["learner/grad_norm"] > 0
        assert metrics["learner/logprob_diff"] < 1e-3
    renderer = renderer_for(model, inline=FORMAT)
    played = sorted((tmp_path / "run" / "trajectories").iterdir())
    shown = {text for path in played for text in observations(path, renderer)}
    assert {FORMAT.result.format(row["answer"]) for row in rows} <= shown, "the right programs ran"
