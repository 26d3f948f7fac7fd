"""`TurnGame`: a game in which players move in turn, and the program that plays it.

async def run(task, players):
    return await play_turns(Nim(task["piles"], list(players)), players)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from agentloop.envs.players.player import Player, PlayerStopped


class InvalidMove(ValueError):
    """A move that the rules do not allow; its text is for the player."""


class TurnGame(ABC):
    """The state of a game. Players are named by their seats."""

    @property
    @abstractmethod
    def to_move(self) -> str | None:
        """The player who moves next; None if the game is over."""

    @abstractmethod
    def observe(self, player: str) -> str:
        """Return the observation of a player before its move."""

    @abstractmethod
    def move(self, player: str, text: str) -> None:
        """Make the move that a turn of a player contains. Raises `InvalidMove` and leaves the state unchanged."""

    @abstractmethod
    def rewards(self) -> Mapping[str, float]:
        """Return the reward of each player at the end."""


async def play_turns(
    game: TurnGame,
    players: Mapping[str, Player],
    *,
    system: str | None = None,
    retries: int = 0,
    forget: bool = False,
    forfeit: float = -1.0,
) -> Mapping[str, float]:
    """Play a game to its end, and return the rewards.

    A player loses if its turn has no valid move after `retries` further attempts, or its conversation reaches a limit:
    its reward is `forfeit`, and all others get 0. With `forget`, each turn is a separate conversation, in which a
    player sees only the current observation. Set it if a move depends on nothing else: equal positions then have equal
    prompts, and the model's value of a position does not depend on the moves before it.
    """
    invalid = dict.fromkeys(players, 0)
    notice = ""
    while (name := game.to_move) is not None:
        player = players[name]
        if forget:
            player.messages.clear()
        try:
            text = await player.say(notice + game.observe(name), system=None if player.messages else system)
            game.move(name, text)
        except PlayerStopped:
            return lost_by(name, players, forfeit)
        except InvalidMove as error:
            invalid[name] += 1
            if invalid[name] > retries:
                return lost_by(name, players, forfeit)
            notice = f"{error}\n\n"
        else:
            notice, invalid[name] = "", 0
    return game.rewards()


def lost_by(loser: str, players: Mapping[str, Player], forfeit: float = -1.0) -> Mapping[str, float]:
    """Return the rewards of a game that a player loses: `forfeit` for it, 0 for all others."""
    return {name: forfeit if name == loser else 0.0 for name in players}
