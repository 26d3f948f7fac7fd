"""Time of a training step over several ranks of one host, for a tiny model and a batch of realistic size.

    python -m benchmarks.learner.learner_ranks --ranks 2 4 [--before FILE]

The model is cheap, so the time is that of sending the batch to the ranks and collecting their answers. The handover is
a call that sends the batch to all ranks, which ignore it. `--before` names the result of the same command on an earlier
commit; the ratios are the step times now over those.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.run.learners import create
from benchmarks import results_file

_WARM_UP = 2


def batch_of(trajectories: int, median: int) -> TrainBatch:
    """Return trajectories of lognormal lengths, a third of whose tokens are trained."""
    rng = np.random.default_rng(0)
    samples = []
    for number, length in enumerate(np.clip(rng.lognormal(np.log(median), 0.5, trajectories), 16, 4 * median)):
        mask = rng.random(int(length)) < 1 / 3
        mask[0], mask[-1] = False, True
        ids = rng.integers(0, 64, len(mask)).astype(np.int32)
        logprobs = np.where(mask, -4.1, 0).astype(np.float32)
        versions = np.zeros(len(mask), np.int32)
        samples.append(Sample(ids, mask, logprobs, versions, float(rng.normal()), trajectory_id=str(number)))
    return TrainBatch(samples)


def nothing(objects: dict[str, Any], batch: TrainBatch) -> None:
    """Take the batch."""


def measure(model: Path, ranks: int, batch: TrainBatch, steps: int, device: str) -> dict[str, Any]:
    config = LearnerConfig(model=str(model), device=device, ranks=ranks, token_budget=16384, lr=1e-4)
    started = time.perf_counter()
    learner: Any = create(config)
    start_seconds = time.perf_counter() - started
    group = learner.ranks if hasattr(learner, "ranks") else learner._ranks  # of earlier commits
    try:
        seconds = [_timed(lambda: learner.step(batch)) for _ in range(_WARM_UP + steps)][_WARM_UP:]
        handover = [_timed(lambda: group.run(lambda: None, nothing, batch)) for _ in range(_WARM_UP + 20)][_WARM_UP:]
    finally:
        learner.close()
    return {
        "ranks": ranks,
        "start_seconds": start_seconds,
        "step_seconds": statistics.median(seconds),
        "fastest_step_seconds": min(seconds),
        "handover_seconds": statistics.median(handover),
        "all_seconds": seconds,
    }


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--trajectories", type=int, default=128)
    parser.add_argument("--median", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--before", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    Qwen3ForCausalLM(Qwen3Config(**sizes, num_attention_heads=4, num_key_value_heads=2)).save_pretrained(folder)
    batch = batch_of(args.trajectories, args.median)
    runs = [measure(folder, ranks, batch, args.steps, args.device) for ranks in args.ranks]
    result: dict[str, Any] = {"tokens": batch.num_tokens, "trajectories": args.trajectories, "runs": runs}
    if args.before:
        before = json.loads(args.before.read_text())["result"]["runs"]
        result["before"] = before
        names = ("step_seconds", "fastest_step_seconds", "handover_seconds")
        result["ratios"] = [
            {"ranks": now["ranks"], **{name: now[name] / then[name] for name in names}}
            for now, then in zip(runs, before, strict=True)
        ]
    print(json.dumps({key: value for key, value in result.items() if key != "before"}, indent=1))
    print(results_file.write("learner_ranks", result))


if __name__ == "__main__":
    main()
