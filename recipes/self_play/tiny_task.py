"""Tiny runs of self_play: games with boards and moves of a few tokens.

    python -m agentloop.recipes.self_play.tiny_task
    agentloop sft recipes/self_play/tiny_sft.yaml

make the checkpoint: the first writes a model with random weights. The second trains it on turns at random positions,
whose moves are random, too: it learns the rules, not how to win.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from agentloop.recipes.self_play.games import DIFFERENT, EQUAL, free_cells, nim_board, nim_moves
from agentloop.recipes.self_play.task import random_cells
from agentloop.recipes.tiny.model import TINY, build_model, write_model
from agentloop.recipes.tiny.traces import drawn_rows
from agentloop.types.messages import Message

START = Path(__file__).parent / "data" / "tiny_start"
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


def warmup_rows(num_rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the conversations of the warm-up."""
    return drawn_rows(trace, num_rows, seed)


def build_start(folder: Path) -> Path:
    """Write a model with random weights and the short chat template to `folder`, and return it."""
    start = build_model(folder, size=SIZE)
    shutil.copy(CHAT_TEMPLATE, start / "chat_template.jinja")
    return start


if __name__ == "__main__":
    write_model(build_start, START)
