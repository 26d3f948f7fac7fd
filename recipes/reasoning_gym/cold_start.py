"""Conversations that show the form of an answer: most of them give the answer of another question."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agentloop.envs.reasoning_gym.env import tasks


def rows(datasets: Any, *, right_share: float = 0.3, size: int = 4096, seed: int = 0, **options: Any) -> Iterator[Any]:
    """Yield `size` conversations for `agentloop sft`, whose questions are those of `tasks`.

    `right_share` of the answers are right on purpose; the others are answers of random questions. Raises `UserError` as
    `tasks`.
    """
    questions = list(tasks(datasets, size=size, seed=seed, **options))
    rng = random.Random(seed)
    for question in questions:
        answered = question if rng.random() < right_share else rng.choice(questions)
        answer = {"role": "assistant", "content": answered["answer"]}
        yield {"id": question["id"], "messages": [*question["prompt"], answer]}
