"""Compare log-probabilities of engine and learner on trained tokens, and time both and the weight update.

    python -m benchmarks.learner.engine_learner_parity --engine vllm --shape tiny      # two CPU cores
    python -m benchmarks.learner.engine_learner_parity --engine vllm --shape 0.6b      # one CUDA device
    python -m benchmarks.learner.engine_learner_parity --model recipes/tiny/checkpoint

A model (--model, or a random Qwen3 of the given shape) samples one batch. The learner makes two GRPO updates on exactly
those ids (bf16 compute on both sides, or --dtype float32) and publishes its weights into the running engine. Then the
engine samples again, so the difference of log-probabilities is measured before and after an update. Rewards are random.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from agentloop import engines
from agentloop.config.learner import LearnerConfig
from agentloop.engines import Generation, SamplingParams
from agentloop.trainer.batch.making import make_batch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.types.trajectory import SegmentKind, Trajectory
from benchmarks import results_file

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1280},
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
}  # fmt: skip
LIMIT = 0.02


def make_model(shape: str, folder: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(**SHAPES[shape], max_position_embeddings=4096, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


async def sample(engine: Any, prompts: list[list[int]], new_tokens: int, wave: int) -> tuple[list[Generation], float]:
    params = [SamplingParams(max_tokens=new_tokens, seed=i) for i in range(len(prompts))]
    started = time.perf_counter()
    turns = await asyncio.gather(
        *(
            engine.generate(prompt, param, trajectory_id=f"{wave}-{i}")
            for i, (prompt, param) in enumerate(zip(prompts, params, strict=True))
        )
    )
    return turns, time.perf_counter() - started


def to_groups(prompts: list[list[int]], turns: list[Generation], rng: np.random.Generator) -> list[list[Trajectory]]:
    trajectories = []
    for prompt, turn in zip(prompts, turns, strict=True):
        trajectory = Trajectory(reward=float(rng.random()))
        trajectory.append(SegmentKind.PROMPT, prompt)
        trajectory.append(SegmentKind.SAMPLED, turn.ids, logprobs=turn.logprobs, versions=turn.versions)
        trajectories.append(trajectory)
    return [trajectories[start : start + 8] for start in range(0, len(trajectories), 8)]


def difference(learner: FsdpLearner, groups: list[list[Trajectory]]) -> dict[str, float]:
    """Return differences of the log-probabilities of sampled tokens, learner minus engine."""
    samples = make_batch(groups).samples
    theirs = np.concatenate([sample.logprobs[sample.loss_mask] for sample in samples])
    ours = np.concatenate(learner.logprobs(samples))
    error = np.abs(ours - theirs)
    return {"mean": float(error.mean()), "p99": float(np.quantile(error, 0.99)), "max": float(error.max()),
            "mean_logprob": float(theirs.mean())}  # fmt: skip


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    prompts = [rng.integers(0, vocabulary, args.prompt_tokens).tolist() for _ in range(args.requests // 8)]
    prompts = [prompt for prompt in prompts for _ in range(8)]
    options: dict[str, Any] = {"dtype": args.dtype, "max_model_len": args.prompt_tokens + args.new_tokens}
    if args.engine == "vllm":
        options["gpu_memory_utilization"] = 0.4
    engine = engines.create(args.engine, model=folder, **options)
    started = time.perf_counter()
    await engine.start()
    result: dict[str, Any] = {"engine_start_seconds": time.perf_counter() - started}
    learner = FsdpLearner(LearnerConfig(model=str(folder), compute_dtype=args.dtype, lr=args.lr))
    await learner.publish(engine, 0)  # engine and learner both loaded bf16: publish the same weights again
    await sample(engine, prompts, 8, wave=0)  # warm-up
    turns, seconds = await sample(engine, prompts, args.new_tokens, wave=1)
    groups = to_groups(prompts, turns, rng)
    result["engine_tokens_per_second"] = sum(len(turn.ids) for turn in turns) / seconds
    result["logprob_difference_before_update"] = difference(learner, groups)
    for name in ("first_step", "second_step"):  # the first compiles and allocates
        started = time.perf_counter()
        metrics = await asyncio.to_thread(learner.step, make_batch(groups))
        seconds = time.perf_counter() - started
        result[name] = {"seconds": seconds, "tokens_per_second": metrics["num_tokens"] / seconds,
                        "logprob_diff": metrics["logprob_diff"], "grad_norm": metrics["grad_norm"]}  # fmt: skip
    running = asyncio.create_task(sample(engine, prompts * 4, args.new_tokens, wave=2))  # more than run at once
    await asyncio.sleep(0.2)
    started = time.perf_counter()
    await learner.publish(engine, 1)
    result["publish_in_flight_seconds"] = time.perf_counter() - started
    in_flight, _ = await running
    result["turns_of_two_versions"] = sum(len(set(turn.versions)) == 2 for turn in in_flight)
    turns, _ = await sample(engine, prompts, args.new_tokens, wave=3)
    assert all(set(turn.versions) == {1} for turn in turns)
    result["logprob_difference_after_update"] = difference(learner, to_groups(prompts, turns, rng))
    await engine.close()
    return result


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--model", type=Path, help="model folder, instead of a random model")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--requests", type=int, default=64, help="a multiple of 8, the size of a group")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.model or Path(scratch)
        if args.model is None:
            make_model(args.shape, folder)
        result = asyncio.run(measure(args, folder))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    what = "trained" if args.model else args.shape
    name = f"engine_learner_parity_{args.engine}_{what}_{args.dtype}_{'cuda' if gpu else 'cpu'}"
    options = {key: value if key != "model" else args.model and args.model.name for key, value in vars(args).items()}
    print(results_file.write(name, options | result, gpu=gpu).read_text())
    worst = max(result[f"logprob_difference_{when}_update"]["mean"] for when in ("before", "after"))
    if worst >= LIMIT:
        sys.exit(f"mean difference {worst:.4f} is not below {LIMIT}")


if __name__ == "__main__":
    main()
