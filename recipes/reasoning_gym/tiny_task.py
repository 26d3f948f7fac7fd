"""Tiny run of reasoning_gym: sums, differences and products, with the code interpreter.

    agentloop envs install reasoning_gym
    agentloop sft recipes/reasoning_gym/tiny_sft.yaml

makes the checkpoint from that of `tiny`, by a warm-up on questions of the package. It shows how to call the code
interpreter and how to write the answer; half of its programs follow the question.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentloop.envs.reasoning_gym.env import tasks
from agentloop.recipes.tiny.task import OPERATIONS, Operation
from agentloop.recipes.tiny.traces import TOOL_NAME, drawn_rows, tool_text
from agentloop.types.messages import Message, ToolCall, text_of

DATASETS: dict[str, dict[str, Any]] = {
    "chain_sum": {"config": {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}},
    "products": {"config": {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}},
}
"""Data sets of the run, as in tiny.yaml."""
GUESS_SHARE = 0.2
"""Share of the warm-up's episodes that answer without the tool."""
LISTENING_SHARE = 0.25
"""Share of the programs that follow the question; the others have a random operation, which is right in a third."""

_NOUNS = ("sum", "difference", "product")
_PROGRAMS = {operation.noun: operation for operation in OPERATIONS if operation.noun in _NOUNS}


def right_program(question: str) -> Operation:
    """Return the operation that a question of `DATASETS` asks for."""
    if "*" in question:
        return _PROGRAMS["product"]
    return _PROGRAMS["sum" if "+" in question else "difference"]


def trace(rng: random.Random, questions: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Draw an episode with one of the questions, which are rows of `tasks`: a guess or a program."""
    question: Message = rng.choice(questions)["prompt"][-1]
    if rng.random() < GUESS_SHARE:
        return [question, _answer(rng.randrange(10 ** rng.randint(1, 4)))]
    text = text_of(question["content"])
    used = right_program(text) if rng.random() < LISTENING_SHARE else rng.choice([*_PROGRAMS.values()])
    a, b = map(int, re.findall(r"\d+", text))
    result = used.compute(a, b)
    call = ToolCall(TOOL_NAME, {"code": used.code.format(a=a, b=b)}, id="call_0")
    turn: Message = {"role": "assistant", "content": "", "reasoning_content": f"I need the {used.noun}."}
    turn["tool_calls"] = [call.as_dict()]
    return [question, turn, {"role": "tool", "content": tool_text(result)}, _answer(result)]


def _answer(number: int) -> Message:
    return {"role": "assistant", "content": f"<answer>{number}</answer>"}


def warmup_rows(num_rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the conversations of the warm-up. Raises `UserError` if reasoning-gym is not installed."""
    questions = list(tasks(DATASETS, size=8192, seed=500_000 + seed, system=None))
    return drawn_rows(lambda rng: trace(rng, questions), num_rows, seed)
