"""Environment of engine_throughput.py: answers every turn with one line that requests another turn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentloop import Env, Observation
from agentloop.types.messages import Message

_WORDS = ("sum", "of", "two", "numbers", "is", "the", "product", "and", "then", "take", "what", "remains", "by", "so")
_MORE = "Go on, and then take the sum of that and 12."


def questions(num_rows: int, num_words: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Return rows whose prompts share no prefix, with each number of words in turn."""
    rng = random.Random(0)
    for number in range(num_rows):
        words = " ".join(rng.choices(_WORDS, k=num_words[number % len(num_words)]))
        yield {"prompt": f"{number} {words}"}


class Replies(Env):
    """Environment of `turns` turns without tool calls."""

    def __init__(self, row: Mapping[str, Any], *, turns: int = 1, **_: Any) -> None:
        self._prompt = row["messages"]
        self._left = turns

    async def reset(self) -> Observation:
        return Observation(self._prompt)

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        self._left -= 1
        if self._left == 0:
            return Observation(), 0.0, True, False
        return (
            Observation([{"role": "user", "content": _MORE}]),
            0.0,
            False,
            False,
        )
