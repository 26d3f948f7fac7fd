"""The task of the demo: a question about two numbers that only running the right Python can answer.

Every question names one of five operations. A model of a million parameters cannot compute them, but it can copy the
numbers into a program and the output into its answer; which program belongs to which question is what it must find.
The numbers are drawn so that no two operations give the same answer: a wrong program is never right by chance.
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
    """What can be asked of two numbers."""

    noun: str
    joint: str
    """The words between the two numbers of a question."""
    code: str
    """A Python program that prints the result of `{a}` and `{b}`."""
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
"""What the task asks for; results of at most three digits. The warm-up shows products, too."""

CARRIERS = ("What is the {}?", "Compute the {}.", "Find the {}.", "Tell me the {}.")

_HELD_OUT_SHARE = 8
"""One number pair in so many is kept for evaluation."""


def is_held_out(a: int, b: int) -> bool:
    """Whether the pair is for evaluation only, whatever is asked about it: never in the warm-up, never in training."""
    return (a * 31 + b * 17) % _HELD_OUT_SHARE == 0


def draw_numbers(rng: random.Random, *, held_out: bool, wide: bool = False) -> tuple[int, int]:
    """a in 100..499 and b in 11..19, with a different result for each operation.

    `wide`, for the warm-up: a in 100..9999 (short and long ones alike often) and b in 11..99. To copy them is harder
    than what the task asks for.
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
    return carrier.format(f"{operation.noun} of {a} {operation.joint} {b}")


def train_rows(num_rows: int = 4096, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Rows to train on: `prompt`, `answer` (the number as text), `operation`."""
    return _rows("train", num_rows, seed)


def held_out_rows(num_rows: int = 100, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Rows to evaluate on: every operation and carrier equally often, numbers that training never shows."""
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
    """1.0 where the final answer, "The answer is N.", is right; else 0.0. An episode that did not end has no answer."""
    if trajectory.stop_reason is not StopReason.COMPLETED:
        return 0.0
    stated = re.search(r"answer is (-?\d+)\.?$", trajectory.final_text.strip())
    return float(stated is not None and stated[1] == task["answer"])
