r"""The tiny run of ReTool: the questions of the recipe `tiny`, the answer in a `\boxed{}`, ReTool's +1 and -1.

    python -m agentloop.recipes.retool.tiny_task [FOLDER]

makes the checkpoint: the one of `tiny` after a cold start on traces of which most answer without the tool, as a model
does that never needed one.
"""

from __future__ import annotations

import random
from pathlib import Path

from agentloop.recipes.common.checkpoint import make_checkpoint
from agentloop.recipes.tiny.fine_tuning import OnUpdate, fine_tune
from agentloop.recipes.tiny.task import held_out_rows, train_rows
from agentloop.recipes.tiny.traces import conversation
from agentloop.recipes.tiny.warmup import CHECKPOINT as START
from agentloop.recipes.tiny.warmup import tool_schemas
from agentloop.types.messages import Message

__all__ = ["held_out_rows", "train_rows"]

CHECKPOINT = Path(__file__).parent / "checkpoint"
GUESS_SHARE = 0.4
"""Of the traces: those that answer without the tool."""


def cold_start_trace(rng: random.Random) -> list[Message]:
    """A conversation of `tiny` in ReTool's format."""
    return conversation(rng, answer=r"\boxed{{{}}}", guess_share=GUESS_SHARE)


def warm_up(folder: Path, *, num_updates: int = 300, on_update: OnUpdate | None = None) -> Path:
    """Write the checkpoint of the tiny run to `folder`."""
    return fine_tune(
        START,
        folder,
        cold_start_trace,
        schemas=tool_schemas(),
        num_updates=num_updates,
        lr=2e-3,
        on_update=on_update,
    )


if __name__ == "__main__":
    make_checkpoint(warm_up, CHECKPOINT)
