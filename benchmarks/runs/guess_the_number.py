"""Games of GuessTheNumber played by a script, as conversations for `agentloop sft`.

They show the form of a guess. Most guesses are random and ignore the hints "higher" and "lower".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from typing import Any

from agentloop.envs.textarena.env import program, tasks
from agentloop.envs.workers.pool import WorkerPool
from agentloop.process.blocking import run_blocking

LARGEST = 20
"""Largest number that the game hides; the smallest is 1."""


def rows(max_turns: int = 4, *, hint_share: float = 0.2, size: int = 4096, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield `size` games. `hint_share` of the guesses agree with all hints; the others are any new number.

    Raises `UserError` if TextArena is not installed.
    """
    games = list(tasks({"GuessTheNumber-v0": {"max_turns": max_turns}}, size=size, seed=seed))

    async def played() -> list[dict[str, Any]]:
        pool = WorkerPool(program(), processes=4)
        try:
            return await asyncio.gather(*(play(pool, game, hint_share) for game in games))
        finally:
            pool.close()

    yield from run_blocking(played)


async def play(pool: WorkerPool, game: Mapping[str, Any], hint_share: float) -> dict[str, Any]:
    """Play one game to its end."""
    rng = random.Random(game["seed"])
    low, high, guessed, messages = 1, LARGEST, set[int](), list[dict[str, str]]()
    first = {"game": game["game"], "seed": game["seed"], "options": game["options"], "players": 1}
    async with pool.episode(first, seconds=60) as episode:
        state = episode.first
        while "rewards" not in state:
            smallest, largest = (low, high) if rng.random() < hint_share else (1, LARGEST)
            guess = rng.choice(sorted({*range(smallest, largest + 1)} - guessed))
            guessed.add(guess)
            messages += [{"role": "user", "content": state["text"]}, {"role": "assistant", "content": f"[{guess}]"}]
            state = await episode.step({"text": f"[{guess}]"})
            if "higher" in state.get("text", ""):
                low = max(low, guess + 1)
            else:
                high = min(high, guess - 1)
    return {"id": game["id"], "messages": messages}
