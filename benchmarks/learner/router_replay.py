"""Measure how far learner and engine are apart on a mixture of experts, with and without router replay.

    python -m benchmarks.learner.router_replay --picture docs/pictures/router-replay.png    # two CPU cores

A small Qwen3-MoE with random weights samples with the hf engine in bfloat16 and is trained by GRPO in float32, once
with `router_replay` and once without, from the same weights. Before each update the log-probabilities of learner and
engine are compared on the sampled tokens. Random weights show how far the two are apart, not how well a model learns.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentloop import engines
from agentloop.config.learner import LearnerConfig
from agentloop.engines import SamplingParams
from agentloop.trainer.batch.making import make_batch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.types.trajectory import SegmentKind, Trajectory
from benchmarks import results_file

SHAPE = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64,
         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "num_experts": 32, "num_experts_per_tok": 4, "max_position_embeddings": 256}  # fmt: skip
_GROUP = 8
_PROMPT = 16
_OUTSIDE = 2.0
"""A ratio of probabilities counts as far off above this, and below its inverse."""


def make_model(folder: Path, scale: float) -> None:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(**SHAPE, norm_topk_prob=True, initializer_range=scale)  # type: ignore[arg-type]
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


async def play(engine: Any, update: int, groups: int, new_tokens: int) -> list[list[Trajectory]]:
    """Return groups of episodes of one turn; the reward is the share of even ids."""
    rng = np.random.default_rng(update)
    played = []
    for _ in range(groups):
        prompt = rng.integers(0, SHAPE["vocab_size"], _PROMPT).tolist()
        seeds = rng.integers(0, 1 << 31, _GROUP).tolist()
        played.append([(prompt, SamplingParams(max_tokens=new_tokens, seed=seed)) for seed in seeds])

    async def episode(prompt: list[int], params: SamplingParams, name: str) -> Trajectory:
        turn = await engine.generate(prompt, params, trajectory_id=name)
        engine.release(name)
        trajectory = Trajectory(reward=float(np.mean([token % 2 == 0 for token in turn.ids])))
        trajectory.append(SegmentKind.PROMPT, prompt)
        trajectory.append(SegmentKind.SAMPLED, turn.ids, logprobs=turn.logprobs, versions=turn.versions)
        trajectory.add_routed(turn.routed)
        return trajectory

    return [
        await asyncio.gather(*(episode(*one, f"{update}-{g}-{i}") for i, one in enumerate(group)))
        for g, group in enumerate(played)
    ]


async def train(folder: Path, args: argparse.Namespace, *, replays: bool) -> dict[str, list[float]]:
    """Return a value of each figure for each update."""
    options = {"dtype": "bfloat16", "device": "cpu", "max_model_len": _PROMPT + args.new_tokens, "routed_experts": True}
    engine = engines.create("hf", model=folder, **options)
    await engine.start()
    learner = FsdpLearner(LearnerConfig(model=str(folder), device="cpu", lr=args.lr, router_replay=replays))
    found: dict[str, list[float]] = {
        name: [] for name in ("reward", "logprob_diff", "outside", "changed", "entropy", "max_share")
    }
    for update in range(args.updates):
        await learner.publish(engine, update)
        groups = await play(engine, update, args.groups, args.new_tokens)
        batch = make_batch(groups)
        theirs = np.concatenate([sample.logprobs[sample.loss_mask] for sample in batch.samples])
        gap = np.concatenate(learner.logprobs(batch.samples)) - theirs
        metrics = learner.step(batch)
        found["reward"].append(float(np.mean([episode.reward for group in groups for episode in group])))
        found["logprob_diff"].append(float(np.abs(gap).mean()))
        found["outside"].append(float((np.abs(gap) > np.log(_OUTSIDE)).mean()))
        found["changed"].append(metrics.get("experts/changed", float("nan")))
        found["entropy"].append(metrics["experts/entropy"])
        found["max_share"].append(metrics["experts/max_share"])
        if update % 10 == 0:
            print(replays, update, {name: round(values[-1], 5) for name, values in found.items()}, flush=True)
    await engine.close()
    return {name: values for name, values in found.items() if np.isfinite(values).all()}


def plot(curves: dict[str, dict[str, list[float]]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    titles = {
        "logprob_diff": "mean |log-probability difference|, nats",
        "outside": "share of tokens with a ratio outside 0.5 to 2",
    }
    for axes, (name, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for (label, curve), colour in zip(curves.items(), ("#d1672b", "#1b6ca8"), strict=True):
            axes.plot(curve[name], color=colour, linewidth=1.4, label=label)
        axes.set(xlabel="update", title=title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--groups", type=int, default=4, help=f"groups of {_GROUP} episodes in an update")
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--scale", type=float, default=0.2, help="standard deviation of the random weights")
    parser.add_argument("--picture", type=Path, help="file for the curves")
    args = parser.parse_args()
    curves: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        make_model(Path(scratch), args.scale)
        for label, replays in (("without replay", False), ("with replay", True)):
            curves[label] = asyncio.run(train(Path(scratch), args, replays=replays))
    means = {label: {name: float(np.mean(values)) for name, values in curve.items()} for label, curve in curves.items()}
    print(means)
    options = {key: value for key, value in vars(args).items() if key != "picture"}
    shape = SHAPE | {"engine_dtype": "bfloat16", "learner_dtype": "float32"}
    print(results_file.write("router_replay", options | {"shape": shape, "means": means, "curves": curves}))
    if args.picture is not None:
        plot(curves, args.picture)


if __name__ == "__main__":
    main()
