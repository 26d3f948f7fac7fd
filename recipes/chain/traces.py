"""Synthetic episodes for the warm-up.

As in `tiny`, the operations of half of the traces are random instead of those of the question, and some traces guess a
number without the tool.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentloop.recipes.chain.task import FIRST, SECOND, draw_numbers, question
from agentloop.recipes.tiny.task import Operation
from agentloop.recipes.tiny.traces import GUESS_SHARE, LISTENING_SHARE, TOOL_NAME, drawn_rows, tool_text
from agentloop.types.messages import Message, ToolCall


def rows(num_rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the conversations of the warm-up."""
    return drawn_rows(conversation, num_rows, seed, batch_size=128, with_tools=16)


def conversation(rng: random.Random) -> list[Message]:
    """Draw a synthetic episode without held-out numbers."""
    first, second = rng.choice(FIRST), rng.choice(SECOND)
    a, b, c = draw_numbers(rng, held_out=False)
    prompt: Message = {"role": "user", "content": question(first, second, a, b, c)}
    if rng.random() < GUESS_SHARE:
        return [prompt, _says(rng.randrange(10 ** rng.randint(1, 5)))]
    if rng.random() >= LISTENING_SHARE:
        first, second = rng.choice(FIRST), rng.choice(SECOND)
    result = first.compute(a, b)
    final = second.compute(result, c)
    return [prompt, *_step("First", first, a, b, 0), *_step("Then", second, result, c, 1), _says(final)]


def _step(when: str, operation: Operation, a: int, b: int, number: int) -> list[Message]:
    """Return a call and its answer."""
    call = ToolCall(TOOL_NAME, {"code": operation.code.format(a=a, b=b)}, id=f"call_{number}")
    turn: Message = {"role": "assistant", "content": "", "reasoning_content": f"{when} the {operation.noun}."}
    turn["tool_calls"] = [call.as_dict()]
    return [turn, {"role": "tool", "content": tool_text(operation.compute(a, b))}]


def _says(number: int) -> Message:
    return {"role": "assistant", "content": f"The answer is {number}."}
