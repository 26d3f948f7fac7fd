"""Worker of TextArena (`agentloop.envs.workers.script`): plays games without their wrappers.

The wrappers repeat the whole history in each observation. Without them a player reads only what is new.
"""

from __future__ import annotations

import difflib
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import textarena as ta
from textarena.envs.registration import ENV_REGISTRY

RandomNumbers = runpy.run_path(str(Path(__file__).parents[1] / "workers" / "random_numbers.py"))["RandomNumbers"]


class Worker:
    """Any number of concurrent games, each with its own random state."""

    def __init__(self) -> None:
        self.games: dict[str, Game] = {}

    def rows(self, games: Mapping[str, Mapping[str, Any]], size: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield `size` rows that take the games in turn. Raises `ValueError` for games that cannot be created."""
        for name, options in games.items():
            Game(name, options, 0)
        names = list(games)
        for number in range(seed, seed + size):
            name = names[(number - seed) % len(names)]
            yield {"id": f"{name}-{number}", "game": name, "seed": number, "options": dict(games[name])}

    def start(self, episode: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a game. Return its first state."""
        game = Game(arguments["game"], arguments["options"], arguments["seed"])
        self.games[episode] = game
        return game.reset(arguments["players"], arguments["seed"])

    def step(self, episode: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Make the move of the player whose turn it is. Return the new state."""
        return self.games[episode].step(arguments["text"])

    def close(self, episode: str) -> None:
        """Forget a game."""
        self.games.pop(episode, None)


class Game:
    """A game of the package. It draws from the random numbers of the process, so each game has its own state."""

    def __init__(self, name: str, options: Mapping[str, Any], seed: int) -> None:
        self.numbers = RandomNumbers(seed)
        with self.numbers.used():
            self.env = ta.make(registered(name), **options)

    def reset(self, players: int, seed: int) -> dict[str, Any]:
        """Begin with a number of players."""
        with self.numbers.used():
            self.env.reset(num_players=players, seed=seed)
            return self.observation()

    def step(self, text: str) -> dict[str, Any]:
        """Make a move."""
        with self.numbers.used():
            done, _ = self.env.step(action=text)
            return self.outcome() if done else self.observation()

    def observation(self) -> dict[str, Any]:
        """Return the player whose turn it is and its new messages, without the echo of its own last turn."""
        player, rows = self.env.get_observation()
        names = self.env.state.role_mapping
        lines = [
            f"[{'GAME' if sender == ta.GAME_ID else names.get(sender, f'Player {sender}')}] {text}"
            for sender, text, kind in rows
            if (sender, kind) != (player, ta.ObservationType.PLAYER_ACTION)
        ]
        return {"player": player, "text": "\n".join(lines)}

    def outcome(self) -> dict[str, Any]:
        """Return the rewards by player, and the player that lost by an invalid move."""
        rewards, info = self.env.close()
        given = {str(player): float(reward) for player, reward in (rewards or {}).items() if reward is not None}
        return {"rewards": given, "invalid": [player for player, each in info.items() if each.get("invalid_move")]}


def registered(name: str) -> str:
    """Return the id of a game without wrappers. Raises `ValueError`."""
    for found in (f"{name}-raw", name):
        if found in ENV_REGISTRY and not found.endswith("-train"):
            return found
    games = [each.removesuffix("-raw") for each in ENV_REGISTRY if each.endswith("-raw")]
    near = difflib.get_close_matches(name.removesuffix("-train"), games, n=1)
    raise ValueError(f"TextArena has no game {name}" + (f": did you mean {near[0]}?" if near else ""))
