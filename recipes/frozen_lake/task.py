"""Dataset rows of FrozenLake games, whose maps come from their seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

PROMPT = (
    "You (P) are on a frozen lake. Walk to the goal (G) over the ice (F, S) and do not step into a hole (H). Each move "
    "goes one cell; you are told what lies around you, edge where the lake ends. Think, then move."
)

HELD_OUT_SEED = 1_000_000
"""First seed of held-out games."""


def train_rows(num_rows: int = 8192, seed: int = 0, prompt: str = PROMPT) -> Iterator[dict[str, Any]]:
    """Yield training rows."""
    rng = random.Random(seed)
    return (_row("train", rng.randrange(HELD_OUT_SEED), prompt) for _ in range(num_rows))


def held_out_rows(num_rows: int = 100, prompt: str = PROMPT) -> Iterator[dict[str, Any]]:
    """Yield evaluation rows with other seeds. Small maps may repeat those of training."""
    return (_row("held-out", HELD_OUT_SEED + index, prompt) for index in range(num_rows))


def _row(split: str, seed: int, prompt: str) -> dict[str, Any]:
    return {"id": f"{split}-{seed}", "prompt": [{"role": "user", "content": prompt}], "seed": seed}
