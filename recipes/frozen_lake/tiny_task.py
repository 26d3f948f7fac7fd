"""Tiny run of frozen_lake: maps of 3 x 3 described in words, and moves of one word.

    agentloop sft recipes/frozen_lake/tiny_sft.yaml

makes the checkpoint from that of `tiny`, by a warm-up on games in which most moves are random.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentloop.recipes.frozen_lake.task import HELD_OUT_SEED
from agentloop.recipes.tiny.traces import drawn_rows
from agentloop.types.messages import Message

PROMPT = "Go."
SIZE = 3
MAX_STEPS = 8
WISE_SHARE = 0.4
"""Share of the warm-up's moves that begin a shortest path; the others are random."""


def trace(rng: random.Random) -> list[Message]:
    """Draw a game in which some moves are on a shortest path."""
    from agentloop.envs.gymnasium.text_actions import hint
    from agentloop.recipes.frozen_lake.lake import MOVES, RandomLake

    lake = RandomLake(size=SIZE, max_steps=MAX_STEPS, show_map=False)
    shown, _ = lake.reset(seed=rng.randrange(HELD_OUT_SEED))
    ask = hint(lake.action_space, {}, MOVES)
    messages: list[Message] = [{"role": "user", "content": f"{PROMPT}\n\n{shown}\n\n{ask}"}]
    is_over = False
    while not is_over:
        move = rng.choice(lake.best_moves() if rng.random() < WISE_SHARE else MOVES)
        messages.append({"role": "assistant", "content": move})
        shown, _, terminated, truncated, _ = lake.step(MOVES.index(move))
        is_over = terminated or truncated
        if not is_over:
            messages.append({"role": "user", "content": shown})
    return messages


def warmup_rows(num_rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the conversations of the warm-up."""
    return drawn_rows(trace, num_rows, seed)
