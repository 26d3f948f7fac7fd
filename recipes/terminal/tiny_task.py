"""Tiny run of terminal: tasks of one short command.

    agentloop sft recipes/terminal/tiny_sft.yaml

makes the checkpoint from that of `tiny`, by a warm-up in which half of the commands do something else than the
instruction.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentloop.envs.harbor.making.terminal import FAMILIES, Draw
from agentloop.recipes.tiny.traces import drawn_rows
from agentloop.types.messages import Message, ToolCall

LISTENING_SHARE = 0.3
"""Share of the warm-up's commands that follow the instruction; the others follow another one."""


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


def warmup_rows(num_rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the conversations of the warm-up."""
    return drawn_rows(trace, num_rows, seed)
