"""Measure how far the event loop lags while a checkpoint of about 1 GB is saved, beside an idle loop.

    python -m benchmarks.runs.checkpoint_lag [--million-parameters 85] [--saves 3]

The learner is a list of float32 tensors, as for AdamW: weights and two moments, 12 bytes per parameter. It captures a
copy and writes it with torch.save, through the `CheckpointWriter` of runs. A timer of 1 ms records how late it wakes
up: first while idle, then from the call of `save` until the checkpoint is on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.run.checkpoints import CheckpointWriter, RunState
from benchmarks import results_file

INTERVAL = 0.001
_LAYER = 1_000_000
"""Parameters of one tensor."""


class Tensors:
    """The state of a learner: parameters and both moments of AdamW."""

    def __init__(self, millions: int) -> None:
        self.state = {f"{kind}.{n}": torch.rand(_LAYER) for kind in ("weight", "exp_avg", "exp_avg_sq")
                      for n in range(millions)}  # fmt: skip

    def capture(self) -> Copied:
        return Copied({name: tensor.clone() for name, tensor in self.state.items()})


class Copied:
    """A copy, to be written while training continues."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self._state = state

    def write(self, folder: Path) -> None:
        folder.mkdir()
        torch.save(self._state, folder / "state.pt")


async def lag(work: Callable[[], Awaitable[Any]]) -> dict[str, float]:
    """Return how late a timer woke up during `work`, in ms."""
    found: list[float] = []

    async def watch() -> None:
        while True:
            due = time.perf_counter() + INTERVAL
            await asyncio.sleep(INTERVAL)
            found.append(1000 * (time.perf_counter() - due))

    watching = asyncio.create_task(watch())
    start = time.perf_counter()
    await work()
    seconds = time.perf_counter() - start
    watching.cancel()
    p50, p99 = np.percentile(found, [50, 99])
    return {"seconds": round(seconds, 2), "p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2),
            "max_ms": round(max(found), 2), "num": len(found)}  # fmt: skip


async def measure(millions: int, saves: int, folder: Path) -> dict[str, Any]:
    learner = Tensors(millions)
    writer = CheckpointWriter(folder, keep_last=1)
    rounds = []
    for step in range(saves):

        async def save(step: int = step) -> None:
            state = RunState(step, {"num_tasks": 1, "num_taken": 0}, {})
            await writer.save(cast(Learner, learner), state)
            await writer.wait()

        rounds.append({"idle": await lag(lambda: asyncio.sleep(3)), "saving": await lag(save)})
    await writer.close()
    size = sum(tensor.nbytes for tensor in learner.state.values())
    return {"gigabytes": round(size / 1e9, 3), "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million-parameters", type=int, default=85)
    parser.add_argument("--saves", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(args.million_parameters, args.saves, Path(folder)))
    print(results_file.write("checkpoint_lag", result), result)


if __name__ == "__main__":
    main()
