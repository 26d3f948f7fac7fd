"""`Player`: one seat of an episode, as the program of the episode sees it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from agentloop.errors import EnvError, raised
from agentloop.process.threads import threaded
from agentloop.types.limits import StopReason
from agentloop.types.messages import Message

Script = Callable[[Sequence[Message], random.Random], Any]
"""(conversation, random numbers of the episode) -> the text of the turn; it may be `async`."""


class PlayerStopped(Exception):
    """A limit of the run ended the conversation of a player: it cannot continue."""

    def __init__(self, player: str, reason: StopReason, message: str) -> None:
        super().__init__(f"{player}: {message}")
        self.reason = reason


class Player(ABC):
    """A seat of an episode. It sees only `messages`, its conversation."""

    def __init__(self, name: str, *, learns: bool) -> None:
        self.name = name
        self.learns = learns
        """Whether its turns are trained."""
        self.messages: list[Message] = []

    async def say(self, text: str, *, system: str | None = None) -> str:
        """Add a user message to the conversation, and return the player's turn.

        `system` begins the conversation. Raises `PlayerStopped`.
        """
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.messages.append({"role": "user", "content": text})
        turn = await self.turn(self.messages)
        self.messages.append(turn)
        return str(turn["content"])

    @abstractmethod
    async def turn(self, messages: Sequence[Message]) -> Message:
        """Return the turn that follows any conversation, without adding it to `messages`. Raises `PlayerStopped`."""


class ScriptedPlayer(Player):
    """A player that is a function. Its exceptions end the episode as a failure of the environment."""

    def __init__(self, name: str, script: Script, seed: int) -> None:
        super().__init__(name, learns=False)
        self._script = threaded(script)
        self._rng = random.Random(seed)

    async def turn(self, messages: Sequence[Message]) -> Message:
        try:
            text = await self._script(messages, self._rng)
        except Exception as error:  # user code
            raise EnvError(f"the scripted player {self.name} raised {raised(error)}") from error
        if not isinstance(text, str):
            raise EnvError(
                f"the scripted player {self.name} returned {type(text).__name__}: return the text of its turn"
            )
        return {"role": "assistant", "content": text}
