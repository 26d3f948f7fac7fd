r"""Tiny run of ReTool: the questions of the recipe `tiny`, answers in a `\boxed{}`, and ReTool's +1 and -1.

    python -m agentloop.recipes.retool.tiny_task [FOLDER]

makes the checkpoint from that of `tiny`, by a cold start on traces of which many answer without the tool.
"""

from __future__ import annotations

import random
from pathlib import Path

from agentloop.recipes.tiny.fine_tuning import OnUpdate, fine_tune, make_checkpoint
from agentloop.recipes.tiny.task import held_out_rows, train_rows
from agentloop.recipes.tiny.traces import conversation
from agentloop.recipes.tiny.warmup import CHECKPOINT as START
from agentloop.recipes.tiny.warmup import tool_schemas
from agentloop.types.messages import Message

__all__ = ["held_out_rows", "train_rows"]

CHECKPOINT = Path(__file__).parent / "checkpoint"
GUESS_SHARE = 0.4
"""Share of the traces that answer without the tool."""


def cold_start_trace(rng: random.Random) -> list[Message]:
    """Draw a conversation of `tiny` in ReTool's format."""
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
