"""Supervised warm-up from random weights to a model that can use the tool, but not for the question.

    python -m agentloop.recipes.tiny.warmup [FOLDER]

writes the checkpoint from which `agentloop demo` starts, by default over the one in the recipe. Seeds are fixed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from agentloop.recipes.tiny.fine_tuning import OnUpdate, fine_tune, make_checkpoint
from agentloop.recipes.tiny.model import build_model
from agentloop.recipes.tiny.traces import conversation

if TYPE_CHECKING:
    from agentloop.rendering.base import ToolSchemas

CHECKPOINT = Path(__file__).parent / "checkpoint"

UPDATES = 800
LEARNING_RATE = 2.5e-3


def tool_schemas() -> ToolSchemas:
    """Return the schemas of the recipe's tools."""
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
    with tempfile.TemporaryDirectory() as scratch:
        return fine_tune(
            build_model(Path(scratch) / "start", seed),
            folder,
            conversation,
            schemas=tool_schemas(),
            num_updates=num_updates,
            lr=LEARNING_RATE,
            seed=seed,
            device="cpu",  # the device of `agentloop demo --from-scratch`
            on_update=on_update,
        )


if __name__ == "__main__":
    make_checkpoint(warm_up, CHECKPOINT)
