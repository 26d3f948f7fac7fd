"""Questions that need two programs: the second one uses the output of the first one.

An example: "Take the remainder of 431 by 17, then the product of that and 12." All pairs of operations on the drawn
numbers have different results, so a wrong program is never correct by chance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentloop.recipes.tiny.task import ASKED, OPERATIONS, Operation, is_held_out

FIRST = ASKED
SECOND = tuple(operation for operation in OPERATIONS if operation.noun in ("sum", "difference", "product"))
"""Operations on the first result and a number."""


def draw_numbers(rng: random.Random, *, held_out: bool) -> tuple[int, int, int]:
    """Draw a in 100..999, b and c in 11..39, with a different result for each pair of operations."""
    while True:
        a, b, c = rng.randrange(100, 1000), rng.randrange(11, 40), rng.randrange(11, 40)
        results = {second.compute(first.compute(a, b), c) for first in FIRST for second in SECOND}
        if is_held_out(a, b) == held_out and len(results) == len(FIRST) * len(SECOND):
            return a, b, c


def question(first: Operation, second: Operation, a: int, b: int, c: int) -> str:
    """Return the question."""
    return f"Take the {first.noun} of {a} {first.joint} {b}, then the {second.noun} of that {second.joint} {c}."


def train_rows(num_rows: int = 65536, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield training rows: `prompt`, `answer` (the number as text), `operations`."""
    return _rows("train", num_rows, seed)


def held_out_rows(num_rows: int = 300, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield evaluation rows: every pair of operations equally often, with numbers that training never has."""
    return _rows("held-out", num_rows, seed)


def _rows(split: str, num_rows: int, seed: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(f"chain-{split}-{seed}")
    pairs = [(first, second) for first in FIRST for second in SECOND]
    for index in range(num_rows):
        if index % len(pairs) == 0:
            rng.shuffle(pairs)
        first, second = pairs[index % len(pairs)]
        a, b, c = draw_numbers(rng, held_out=split == "held-out")
        yield {
            "id": f"{split}-{seed}-{index}",
            "prompt": [{"role": "user", "content": question(first, second, a, b, c)}],
            "answer": str(second.compute(first.compute(a, b), c)),
            "operations": [first.noun, second.noun],
        }
