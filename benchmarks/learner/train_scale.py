"""Measure the scaling of a training step over the GPUs of one host.

Models have Qwen3 shapes and random weights, and sequences have unequal lengths.

    python -m benchmarks.learner.train_scale --model 1.7B --ranks 1 2 [--tokens 262144 --sigma 0.8 ...]

Every number of ranks trains on the same batch of trajectories, through `learner.ranks`: rank 0 in this process, the
others in actors of Ray. Scaling is tokens a second and rank, over those of the fewest ranks; 1 is perfect. A step is
everything from the batch in the driver to changed weights: sending, planning, packing, forward, backward, sums,
optimizer.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.run.learners import create
from benchmarks import results_file
from benchmarks.learner import qwen3

_WARM_UP = 2
"""Untimed first steps; the first one compiles."""
_STARTED = time.perf_counter()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=qwen3.SHAPES, default="1.7B")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--trained", type=float, default=0.25, help="share of trained tokens")
    parser.add_argument("--tokens", type=int, default=262144, help="tokens of a step, over all ranks")
    parser.add_argument("--median", type=float, default=2000)
    parser.add_argument("--sigma", type=float, default=0.8)
    parser.add_argument("--cap", type=int, default=8192)
    parser.add_argument("--token-budget", type=int, default=32768)
    parser.add_argument("--sequence-parallel", type=int, default=1)
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    return parser.parse_args()


def say(what: str) -> None:
    print(f"{time.perf_counter() - _STARTED:7.1f} s  {what}", flush=True)


def measure(args: argparse.Namespace, ranks: int, batch: TrainBatch) -> dict[str, Any]:
    config = LearnerConfig(
        model=str(qwen3.random_model(args.model, args.folder)),
        device=args.device,
        compute_dtype="bfloat16" if args.device == "cuda" else "float32",
        token_budget=args.token_budget,
        attention=args.attention,
        ranks=ranks,
        sequence_parallel=args.sequence_parallel if ranks > 1 else 1,
    )
    gc.collect()  # the learner before
    if args.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    say(f"{ranks} ranks: starting")
    learner = create(config)
    try:
        found = [timed_step(learner, batch) for _ in range(_WARM_UP + args.steps)]
    finally:
        learner.close()
    seconds = statistics.median(seconds for seconds, _ in found[_WARM_UP:])
    last = found[-1][1]
    return {
        "ranks": ranks,
        "first_step_seconds": found[0][0],
        "all_seconds": [seconds for seconds, _ in found],
        "step_seconds": seconds,
        "tokens_per_second": batch.num_tokens / seconds,
        **{
            name: last[name]
            for name in (
                "loss",
                "grad_norm",
                "balance",
                "mfu",
                "memory_peak_gib",
                "memory_expected_gib",
                "largest_row",
            )
            if name in last
        },
        "last_phases": {name: value for name, value in last.items() if name.startswith("seconds/")},
    }


def timed_step(learner: Any, batch: TrainBatch) -> tuple[float, dict[str, float]]:
    start = time.perf_counter()
    metrics = learner.step(batch)
    seconds = time.perf_counter() - start
    say(f"a step of {seconds:.3f} s")
    return seconds, metrics


def main() -> None:
    args = parse()
    lengths = qwen3.lengths_of(args.tokens, args.median, args.sigma, args.cap)
    vocab = qwen3.model_config(args.model).vocab_size
    batch = qwen3.batch_of(lengths, args.trained, vocab=vocab)
    summary: dict[str, Any] = {
        "model": args.model,
        "options": {key: str(value) for key, value in vars(args).items()},
        "sequences": len(lengths),
        "tokens": batch.num_tokens,
        "trained_tokens": batch.num_sampled,
        "longest": max(lengths),
        "runs": [],
    }
    name = f"train_scale_{args.model}" + (f"_sp{args.sequence_parallel}" if args.sequence_parallel > 1 else "")
    for ranks in args.ranks:
        summary["runs"].append(measure(args, ranks, batch))
        print(json.dumps(summary["runs"][-1]), flush=True)
        fewest = min(summary["runs"], key=lambda run: run["ranks"])
        for run in summary["runs"]:
            run["scaling"] = run["tokens_per_second"] / run["ranks"] * fewest["ranks"] / fewest["tokens_per_second"]
        say(f"scaling {[(run['ranks'], round(run['scaling'], 3)) for run in summary['runs']]}")
        gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
        say(str(results_file.write(name, summary, gpu=gpu)))


if __name__ == "__main__":
    main()
