"""Measure what the overlap of copies saves for an optimizer on the host.

    python -m benchmarks.learner.optimizer_offload --model 4B

Runs steps of a learner with `offload=optimizer`, with overlap and without. Without overlap, parts are four times as
large. Also runs AdamW with its state on the device.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.learner.offload import optimizer_offload as offload
from benchmarks import results_file
from benchmarks.learner.qwen3 import SHAPES, batch_of, lengths_of, model_config, random_model


class _OneByOne(offload._Lanes):
    """Copy lanes that never overlap."""

    @contextmanager
    def fetching(self) -> Iterator[None]:
        with super().fetching():
            yield
        torch.cuda.synchronize()

    @contextmanager
    def sending(self) -> Iterator[None]:
        torch.cuda.synchronize()
        with super().sending():
            yield
        torch.cuda.synchronize()


def measured(learner: FsdpLearner, batch: TrainBatch, steps: int) -> dict[str, Any]:
    """Return the seconds of the fastest step, and of its optimizer."""
    seconds, optimizer = [], []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        start = time.perf_counter()
        phases = learner.step(batch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        optimizer.append(phases["seconds/optimizer"])
    return {
        "optimizer_seconds": optimizer,
        "step_seconds": seconds,
        "tokens_per_second": batch.num_tokens / min(seconds),
        "memory_peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "grad_norm": phases["grad_norm"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="4B")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--token-budget", type=int, default=16384)
    parser.add_argument("--checkpointing", default="off")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    learner = FsdpLearner(
        LearnerConfig(
            model=str(random_model(args.model, args.folder)),
            compute_dtype="bfloat16",
            token_budget=args.token_budget,
            checkpointing=args.checkpointing,
            offload="optimizer",
        )
    )
    batch = batch_of(lengths_of(args.tokens, 2000, 0.8, 8192), 0.25, vocab=model_config(args.model).vocab_size)
    measured(learner, batch, 1)  # compiles, and creates the state
    optimizer = learner.optimizer
    assert isinstance(optimizer, offload.OffloadedAdamW)
    result: dict[str, Any] = {"options": {key: str(value) for key, value in vars(args).items()}}
    result["overlapping"] = measured(learner, batch, args.steps)
    optimizer.__dict__["_lanes"] = _OneByOne(torch.device("cuda"))
    optimizer.part_bytes *= 4
    result["one by one"] = measured(learner, batch, args.steps)
    learner.optimizer = torch.optim.AdamW(optimizer.param_groups[0]["params"], lr=1e-6, fused=True)
    optimizer.state.clear()
    measured(learner, batch, 1)
    result["on the device"] = measured(learner, batch, args.steps)
    print(json.dumps(result))
    print(results_file.write(f"optimizer_offload_{args.model}", result, gpu=torch.cuda.get_device_name()))


if __name__ == "__main__":
    main()
