"""Supervised warm-up: from random weights to a model that can use the tool and does not know for what.

    python -m agentloop.recipes.tiny.warmup [FOLDER]

writes the checkpoint that `agentloop demo` starts from (by default over the one that comes with the recipe). Seeds are
fixed; the time it takes is printed. It trains with the `sft` loss of the learner that reinforcement learning uses.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agentloop.recipes.tiny.model import build_model
from agentloop.recipes.tiny.traces import conversation, to_trajectory

if TYPE_CHECKING:
    from agentloop.rendering.base import ToolSchemas

CHECKPOINT = Path(__file__).parent / "checkpoint"

UPDATES = 800
TRACES_PER_UPDATE = 32
SHOWN_TRACES = 4
"""Of those: how many show the tools in their prompt, as all episodes later do. They are always the same two thirds of
a trace's tokens; the others leave them out, which makes the warm-up twice as fast."""
LEARNING_RATE = 2.5e-3

OnUpdate = Callable[[int, int, float], None]
"""(updates done, updates in all, loss)"""


def tool_schemas() -> ToolSchemas:
    """What the tools of the recipe look like to the model."""
    from agentloop.tools.code_interpreter import CodeInterpreter
    from agentloop.tools.toolset import Toolset

    return Toolset([CodeInterpreter()]).schemas


def warm_up(
    folder: Path,
    *,
    seed: int = 0,
    num_updates: int = UPDATES,
    on_update: OnUpdate | None = None,
) -> Path:
    """Train a new model on synthetic traces and write it, in bfloat16, to `folder`."""
    from agentloop.rendering import renderer_for
    from agentloop.trainer.batch import supervised_batch
    from agentloop.trainer.learner import LearnerConfig, create

    rng = random.Random(seed)
    schemas = tool_schemas()
    with tempfile.TemporaryDirectory() as scratch:
        start = build_model(Path(scratch) / "start", seed)
        renderer = renderer_for(start)
        learner = create(
            LearnerConfig(
                model=str(start),
                device="cpu",
                loss="sft",
                lr=LEARNING_RATE,
                betas=(0.9, 0.95),
                lr_schedule="cosine",
                warmup_updates=min(50, num_updates // 4),
                total_updates=num_updates,
                seed=seed,
            )
        )
        for update in range(num_updates):
            traces = [
                to_trajectory(conversation(rng), renderer, schemas if index < SHOWN_TRACES else ())
                for index in range(TRACES_PER_UPDATE)
            ]
            metrics = learner.step(supervised_batch(traces))
            if on_update is not None:
                on_update(update + 1, num_updates, metrics["loss"])
        learner.save_hf(Path(scratch) / "trained")
        return _halve(Path(scratch) / "trained", folder)


def _halve(source: Path, folder: Path) -> Path:
    """Copy a model folder with its weights in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else CHECKPOINT
    started = time.perf_counter()

    def report(done: int, total: int, loss: float) -> None:
        if done % 20 == 0 or done == total:
            print(f"{done}/{total} updates, {time.perf_counter() - started:.0f} s, loss {loss:.4f}", flush=True)

    warm_up(folder, on_update=report)
    print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
