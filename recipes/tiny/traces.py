"""Synthetic episodes for the warm-up, which show how to use the tool but often ignore the question.

Some episodes guess a number without the tool. In half of the others the operation is random: the thinking names it, and
the program computes it. A model trained on them can write the program of any operation that it names, and copies the
numbers and the output, but is correct at most two times in five. Reinforcement learning must teach it to answer the
question and not to guess.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from agentloop.recipes.tiny.task import CARRIERS, OPERATIONS, draw_numbers, question
from agentloop.types.messages import Message, ToolCall

Draw = Callable[[random.Random], list[Message]]
"""Function that draws one synthetic episode."""
TOOL_NAME = "code_interpreter"
GUESS_SHARE = 0.3
"""Share of the traces that answer without the tool."""
LISTENING_SHARE = 0.5
"""Share of the others whose operation is that of the question. Without any, the model would learn to ignore it."""


def rows(num_rows: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the conversations of the warm-up."""
    return drawn_rows(conversation, num_rows, seed)


def drawn_rows(
    draw: Draw, num_rows: int, seed: int = 0, *, batch_size: int = 32, with_tools: int = 4
) -> Iterator[dict[str, Any]]:
    """Yield episodes of `draw` as rows for `agentloop sft`, in batches.

    The first `with_tools` rows of a batch have the tool schemas in their prompt, as all later episodes do. The others
    omit them, which makes training twice as fast: the schemas are always the same and most of a trace's tokens.
    """
    rng = random.Random(seed)
    for index in range(num_rows):
        row: dict[str, Any] = {"id": f"trace-{seed}-{index}", "messages": draw(rng)}
        yield row if index % batch_size < with_tools else row | {"tools": []}


def conversation(
    rng: random.Random, *, answer: str = "The answer is {}.", guess_share: float = GUESS_SHARE
) -> list[Message]:
    """Draw the messages of an episode without held-out numbers. `answer` is the format of the answer."""
    asked = rng.choice(OPERATIONS)
    used = asked if rng.random() < LISTENING_SHARE else rng.choice(OPERATIONS)
    a, b = draw_numbers(rng, held_out=False, wide=True)
    prompt: Message = {"role": "user", "content": question(asked, rng.choice(CARRIERS), a, b)}
    if rng.random() < guess_share:
        return [prompt, _says(answer, rng.randrange(10 ** rng.randint(1, 6)))]
    result = used.compute(a, b)
    call = ToolCall(TOOL_NAME, {"code": used.code.format(a=a, b=b)}, id="call_0")
    turn: Message = {"role": "assistant", "content": "", "reasoning_content": f"I need the {used.noun}."}
    turn["tool_calls"] = [call.as_dict()]
    return [prompt, turn, {"role": "tool", "content": tool_text(result)}, _says(answer, result)]


def _says(answer: str, number: int) -> Message:
    return {"role": "assistant", "content": answer.format(number)}


def tool_text(result: int) -> str:
    """Return the answer of the code interpreter to a program that prints `result`."""
    return str(result)
