"""Tiny run of self_play: Nim with boards and moves of a few digits.

    python -m agentloop.recipes.self_play.tiny_task [FOLDER]

makes the checkpoint from that of `tiny`, by a warm-up on games in which all moves are random: it learns the rules, not
how to win.
"""

from __future__ import annotations

import random
from pathlib import Path

from agentloop.recipes.self_play.games import nim_board, nim_moves
from agentloop.recipes.tiny.fine_tuning import OnUpdate, fine_tune, make_checkpoint
from agentloop.recipes.tiny.warmup import CHECKPOINT as START
from agentloop.types.messages import Message

CHECKPOINT = Path(__file__).parent / "checkpoint"

PILES = (3, 4, 5)


def trace(rng: random.Random) -> list[Message]:
    """Draw what one player of a random game sees and says."""
    piles, player, turn = list(PILES), rng.randrange(2), 0
    messages: list[Message] = []
    while any(piles):
        pile, count = rng.choice(nim_moves(piles))
        if turn % 2 == player:
            messages.append({"role": "user", "content": nim_board(piles)})
            messages.append({"role": "assistant", "content": f"{pile} {count}"})
        piles[pile - 1] -= count
        turn += 1
    return messages or trace(rng)


def warm_up(folder: Path, *, num_updates: int = 500, on_update: OnUpdate | None = None) -> Path:
    """Write the checkpoint of the tiny run to `folder`."""
    return fine_tune(START, folder, trace, num_updates=num_updates, lr=2e-3, on_update=on_update)


if __name__ == "__main__":
    make_checkpoint(warm_up, CHECKPOINT)
