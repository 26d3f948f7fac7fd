"""Tiny runs of self_play: games with boards and moves of a few tokens.

    python -m agentloop.recipes.self_play.tiny_task [FOLDER]

makes the checkpoint by a warm-up of a new model on turns at random positions, whose moves are random, too: it learns
the rules, not how to win.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from itertools import product
from pathlib import Path

from agentloop.recipes.self_play.games import DIFFERENT, EQUAL, free_cells, nim_board, nim_moves
from agentloop.recipes.self_play.task import random_cells
from agentloop.recipes.tiny.fine_tuning import OnUpdate, fine_tune, make_checkpoint
from agentloop.recipes.tiny.model import TINY, build_model
from agentloop.types.messages import Message

CHECKPOINT = Path(__file__).parent / "checkpoint"
CHAT_TEMPLATE = Path(__file__).with_name("tiny_chat_template.jinja")

SIZE = TINY | {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 16}
"""Sizes of two hundred thousand parameters: enough for the positions of these games."""
PILES = (3, 4, 5)
POSITIONS = [piles for piles in product(*(range(size + 1) for size in PILES)) if any(piles)]


def trace(rng: random.Random) -> list[Message]:
    """Draw a turn of one of the games: its prompt, and a random move."""
    kind = rng.random()
    if kind < 0.1:
        board, move = rng.choice((EQUAL, DIFFERENT)), rng.choice(("heads", "tails"))
    elif kind < 0.5:
        cells = random_cells(rng)
        board, move = " ".join(cells), str(rng.choice(free_cells(cells)))
    else:
        piles = rng.choice(POSITIONS)
        board, move = nim_board(piles), "{} {}".format(*rng.choice(nim_moves(piles)))
    return [{"role": "user", "content": board}, {"role": "assistant", "content": move}]


def warm_up(folder: Path, *, num_updates: int = 500, on_update: OnUpdate | None = None) -> Path:
    """Write the checkpoint of the tiny runs to `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        start = build_model(Path(scratch) / "start", size=SIZE)
        shutil.copy(CHAT_TEMPLATE, start / "chat_template.jinja")
        return fine_tune(
            start, folder, trace, num_updates=num_updates, lr=5e-3, traces_per_update=64, on_update=on_update
        )


if __name__ == "__main__":
    make_checkpoint(warm_up, CHECKPOINT)
