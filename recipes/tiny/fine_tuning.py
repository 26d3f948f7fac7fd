"""Supervised training on synthetic episodes, which makes the checkpoints from which the tiny runs of all recipes start.

It uses the `sft` loss of the same learner as reinforcement learning, on the tokens of the assistant only.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentloop.types.messages import Message

if TYPE_CHECKING:
    from agentloop.rendering.base import ToolSchemas
    from agentloop.rendering.inline import InlineFormat

Draw = Callable[[random.Random], list[Message]]
"""Function that draws one synthetic episode."""
OnUpdate = Callable[[int, int, float], None]
"""Callback with (finished updates, all updates, loss)."""


def fine_tune(
    start: Path,
    folder: Path,
    draw: Draw,
    *,
    schemas: ToolSchemas = (),
    num_updates: int,
    lr: float,
    traces_per_update: int = 32,
    shown_traces: int = 4,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    inline: InlineFormat | None = None,
    on_update: OnUpdate | None = None,
) -> Path:
    """Train the model in `start` on episodes of `draw` and write it, in bfloat16, to `folder`.

    In each update, `shown_traces` have the tool schemas in their prompt, as all later episodes do. The other traces
    omit them, which makes training twice as fast: the schemas are always the same and most of a trace's tokens.
    `inline` is the format of calls if it is not that of the template. `device` auto uses CUDA if available.
    """
    import torch

    from agentloop.config.learner import LearnerConfig
    from agentloop.rendering import renderer_for
    from agentloop.rendering.conversation import conversation_trajectory
    from agentloop.trainer.batch.train_batch import supervised_batch
    from agentloop.trainer.run.learners import create

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = random.Random(seed)
    renderer = renderer_for(start, inline=inline)
    learner = create(
        LearnerConfig(
            model=str(start),
            device=device,
            compute_dtype="bfloat16" if device == "cuda" else "float32",
            loss="sft",
            lr=lr,
            betas=(0.9, 0.95),
            lr_schedule="cosine",
            warmup_updates=min(50, num_updates // 4),
            total_updates=num_updates,
            seed=seed,
        )
    )
    for update in range(num_updates):
        traces = [
            conversation_trajectory(draw(rng), renderer, schemas if index < shown_traces else ())
            for index in range(traces_per_update)
        ]
        metrics = learner.step(supervised_batch(traces))
        if on_update is not None:
            on_update(update + 1, num_updates, metrics["loss"])
    with tempfile.TemporaryDirectory() as scratch:
        learner.save_hf(Path(scratch) / "trained")
        return _halve(Path(scratch) / "trained", folder)


def _halve(source: Path, folder: Path) -> Path:
    """Copy a model folder with its weights in bfloat16."""
    import torch
    from transformers import AutoTokenizer

    from agentloop.vision.loading import load_language_model

    load_language_model(source, dtype=torch.bfloat16, attention="sdpa").save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    if (source / "preprocessor_config.json").is_file():  # a vision model
        shutil.copy(source / "preprocessor_config.json", folder)
    return folder


def report_updates() -> OnUpdate:
    """Return a callback that prints the progress, the time and the loss every 20 updates."""
    started = time.perf_counter()

    def report(done: int, total: int, loss: float) -> None:
        if done % 20 == 0 or done == total:
            print(f"{done}/{total} updates, {time.perf_counter() - started:.0f} s, loss {loss:.4f}", flush=True)

    return report


def make_checkpoint(warm_up: Callable[..., Path], folder: Path) -> None:
    """Run `warm_up(folder, on_update=...)` as a script, and print its progress and the size of the checkpoint.

    The first argument of the command line replaces `folder`.
    """
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
    warm_up(folder, on_update=report_updates())
    print(size_of(folder))


def size_of(folder: Path) -> str:
    """Return a line with the size of a written checkpoint."""
    return f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB"
