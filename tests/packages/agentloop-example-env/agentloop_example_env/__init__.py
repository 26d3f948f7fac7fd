"""An environment of a package of its own: count down, a number a turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop import Env, Message, Observation


class Countdown(Env):
    """The model says one number less in each turn, down to 0. A wrong number ends the episode."""

    def __init__(self, row: Mapping[str, Any], *, toolset: Any = None, reward: Any = None, start: int = 3) -> None:
        self.task = row
        self._next = start

    async def reset(self) -> Observation:
        return Observation([{"role": "user", "content": f"Count down from {self._next}, one number a turn."}])

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        is_right = str(message["content"]).strip() == str(self._next)
        self._next -= 1
        is_over = not is_right or self._next < 0
        return Observation([{"role": "user", "content": "Go on."}]), float(is_right), is_over, False
