"""Task of the demo: a question about two numbers that needs the right Python program.

Every question names one of five operations. A model of a million parameters cannot compute them, but it can copy the
numbers into a program and the output into its answer. It must learn which program belongs to which question. All
operations on the drawn numbers have different results, so a wrong program is never correct by chance.
"""

from __future__ import annotations

import math
import operator
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards import inline
from agentloop.types.limits import StopReason

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation on two numbers."""

    noun: str
    joint: str
    """Word between the two numbers of a question."""
    code: str
    """Python program that prints the result of `{a}` and `{b}`."""
    compute: Callable[[int, int], int]


OPERATIONS = (
    Operation("sum", "and", "print({a} + {b})", operator.add),
    Operation("difference", "and", "print({a} - {b})", operator.sub),
    Operation("product", "and", "print({a} * {b})", operator.mul),
    Operation("quotient", "by", "print({a} // {b})", operator.floordiv),
    Operation("remainder", "by", "print({a} % {b})", operator.mod),
    Operation("greatest common divisor", "and", "import math\nprint(math.gcd({a}, {b}))", math.gcd),
)

ASKED = tuple(operation for operation in OPERATIONS if operation.noun != "product")
"""Operations of the task, with results of at most three digits. The warm-up has products too."""

CARRIERS = ("What is the {}?", "Compute the {}.", "Find the {}.", "Tell me the {}.")

_HELD_OUT_SHARE = 8
"""One in this many number pairs is held out for evaluation."""


def is_held_out(a: int, b: int) -> bool:
    """Return whether the pair is for evaluation only, and neither for the warm-up nor for training."""
    return (a * 31 + b * 17) % _HELD_OUT_SHARE == 0


def draw_numbers(rng: random.Random, *, held_out: bool, wide: bool = False) -> tuple[int, int]:
    """Draw a in 100..499 and b in 11..19, with a different result for each operation.

    With `wide`, for the warm-up, a is in 100..9999 (three and four digits equally often) and b in 11..99. These numbers
    are harder to copy than those of the task.
    """
    while True:
        if wide:
            a = rng.randrange(100, 1000) if rng.random() < 0.5 else rng.randrange(1000, 10000)
            b = rng.randrange(11, 100)
        else:
            a, b = rng.randrange(100, 500), rng.randrange(11, 20)
        results = {operation.compute(a, b) for operation in OPERATIONS}
        if is_held_out(a, b) == held_out and len(results) == len(OPERATIONS):
            return a, b


def question(operation: Operation, carrier: str, a: int, b: int) -> str:
    """Return the question in the sentence `carrier`."""
    return carrier.format(f"{operation.noun} of {a} {operation.joint} {b}")


def train_rows(num_rows: int = 4096, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield training rows: `prompt`, `answer` (the number as text), `operation`."""
    return _rows("train", num_rows, seed)


def held_out_rows(num_rows: int = 100, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield evaluation rows: every operation and carrier equally often, with numbers that training never has."""
    return _rows("held-out", num_rows, seed)


def _rows(split: str, num_rows: int, seed: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(f"{split}-{seed}")
    cells = [(operation, carrier) for operation in ASKED for carrier in CARRIERS]
    for index in range(num_rows):
        if index % len(cells) == 0:
            rng.shuffle(cells)
        operation, carrier = cells[index % len(cells)]
        a, b = draw_numbers(rng, held_out=split == "held-out")
        yield {
            "id": f"{split}-{seed}-{index}",
            "prompt": [{"role": "user", "content": question(operation, carrier, a, b)}],
            "answer": str(operation.compute(a, b)),
            "operation": operation.noun,
        }


@inline
def reward(trajectory: Trajectory, task: Mapping[str, Any]) -> float:
    """Return 1.0 if the episode completed with the correct "The answer is N.", else 0.0."""
    if trajectory.stop_reason is not StopReason.COMPLETED:
        return 0.0
    stated = re.search(r"answer is (-?\d+)\.?$", trajectory.final_text.strip())
    return float(stated is not None and stated[1] == task["answer"])
