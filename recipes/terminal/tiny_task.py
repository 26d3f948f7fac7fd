"""Tiny run of terminal: tasks of one short command.

    python -m agentloop.recipes.terminal.tiny_task [FOLDER]

makes the checkpoint from that of `tiny`, by a warm-up on commands half of which do something else than asked.
"""

from __future__ import annotations

import random
from pathlib import Path

from agentloop.envs.harbor.making.terminal import FAMILIES, Draw
from agentloop.recipes.tiny.fine_tuning import OnUpdate, fine_tune, make_checkpoint
from agentloop.recipes.tiny.warmup import CHECKPOINT as START
from agentloop.types.messages import Message, ToolCall

CHECKPOINT = Path(__file__).parent / "checkpoint"

LISTENING_SHARE = 0.3
"""Share of the warm-up's commands that are those of the instruction; the others belong to any other one."""


def trace(rng: random.Random) -> list[Message]:
    """Draw an episode with a command on the words of the instruction."""
    families = FAMILIES[1]
    seed = str(rng.random())
    asked = rng.choice(sorted(families))
    used = asked if rng.random() < LISTENING_SHARE else rng.choice(sorted(families))
    # Equal seeds draw the same words.
    instruction, command = families[asked](Draw(seed)).instruction, families[used](Draw(seed)).solution
    call = ToolCall("bash", {"command": command}, id="call_0")
    return [
        {"role": "user", "content": instruction},
        {"role": "assistant", "content": "", "tool_calls": [call.as_dict()]},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "Done."},
    ]


def warm_up(folder: Path, *, num_updates: int = 1200, on_update: OnUpdate | None = None) -> Path:
    """Write the checkpoint of the tiny run to `folder`."""
    from agentloop.tools.machine.bash import Bash
    from agentloop.tools.toolset import Toolset

    schemas = Toolset([Bash()]).schemas
    return fine_tune(START, folder, trace, schemas=schemas, num_updates=num_updates, lr=2e-3, on_update=on_update)


if __name__ == "__main__":
    make_checkpoint(warm_up, CHECKPOINT)
