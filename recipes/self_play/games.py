"""Nim, matching pennies and tic-tac-toe, with their optimal moves. The program of each is an `async def run`."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import xor
from typing import Any

from agentloop.envs.players.player import Player
from agentloop.envs.players.turns import InvalidMove, TurnGame, lost_by, play_turns
from agentloop.types.messages import Message, text_of

Move = tuple[int, int]
"""(pile, objects), both from 1."""

FREE = "-"
"""Mark of a free cell. It is one token at every place, so that each cell has the same place in all prompts."""
NO_MARKS = FREE * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


TURNED, MIRRORED = (6, 3, 0, 7, 4, 1, 8, 5, 2), (2, 1, 0, 5, 4, 3, 8, 7, 6)
"""The cell that is shown at each place after a quarter turn, and after a reflection."""

EQUAL, DIFFERENT = "Heads or tails? You win if both are equal.", "Heads or tails? You win if they are not equal."
"""What the first and the second player of matching pennies read."""


class Nim(TurnGame):
    """Players take objects from one pile in turn; who takes the last one wins."""

    def __init__(self, piles: Sequence[int], players: Sequence[str]) -> None:
        self.piles = list(piles)
        self._players = list(players)
        self._turn = 0

    @property
    def to_move(self) -> str | None:
        return self._players[self._turn % len(self._players)] if any(self.piles) else None

    def observe(self, player: str) -> str:
        return nim_board(self.piles)

    def move(self, player: str, text: str) -> None:
        move = nim_move(text)
        if move not in nim_moves(self.piles):
            raise InvalidMove(
                f"{text.strip()[:40]!r} is no move: write a pile and a number of its objects, such as 1 2."
            )
        self.piles[move[0] - 1] -= move[1]
        self._turn += 1

    def rewards(self) -> Mapping[str, float]:
        winner = self._players[(self._turn - 1) % len(self._players)]
        return {name: 1.0 if name == winner else -1.0 for name in self._players}


class TicTacToe(TurnGame):
    """Three in a row on nine cells, which are numbered from 1.

    With `canonical`, players see the board turned or mirrored, so that positions that differ only by that look equal.
    """

    def __init__(self, players: Sequence[str], cells: str = NO_MARKS, *, canonical: bool = False) -> None:
        self.cells = cells
        self._players = list(players)
        self._canonical = canonical

    @property
    def _shown(self) -> tuple[int, ...]:
        """The cell at each place of the board that players see."""
        return canonical_order(self.cells) if self._canonical else tuple(range(9))

    @property
    def to_move(self) -> str | None:
        is_over = winner_of(self.cells) is not None or FREE not in self.cells
        return None if is_over else self._players[9 - self.cells.count(FREE) & 1]

    def observe(self, player: str) -> str:
        return " ".join(self.cells[cell] for cell in self._shown)

    def move(self, player: str, text: str) -> None:
        found = re.search(r"[1-9]", text)
        cell = self._shown[int(found[0]) - 1] if found else 0
        if found is None or self.cells[cell] != FREE:
            raise InvalidMove(f"{text.strip()[:40]!r} is no move: write the number of a free cell.")
        self.cells = placed(self.cells, cell)

    def rewards(self) -> Mapping[str, float]:
        mark = winner_of(self.cells)
        marks = dict(zip(self._players, "xo", strict=True))
        return {name: 0.0 if mark is None else (1.0 if marks[name] == mark else -1.0) for name in self._players}


async def nim(task: Mapping[str, Any], players: Mapping[str, Player]) -> Mapping[str, float]:
    """Play Nim with the piles of the row."""
    return await _play(Nim(task["piles"], list(players)), task, players)


async def tic_tac_toe(task: Mapping[str, Any], players: Mapping[str, Player]) -> Mapping[str, float]:
    """Play tic-tac-toe from the cells of the row, or from the start; the first player is x."""
    game = TicTacToe(list(players), task.get("cells", NO_MARKS), canonical=task.get("canonical", False))
    return await _play(game, task, players)


async def _play(game: TurnGame, task: Mapping[str, Any], players: Mapping[str, Player]) -> Mapping[str, float]:
    """Play a game with the row's `system` message, `forget` (default: false) and `forfeit` (default: -1)."""
    forget, forfeit = task.get("forget", False), task.get("forfeit", -1.0)
    return await play_turns(game, players, system=task.get("system"), forget=forget, forfeit=forfeit)


async def matching_pennies(task: Mapping[str, Any], players: Mapping[str, Player]) -> Mapping[str, float]:
    """Both players choose heads or tails without seeing the other's choice. The first wins if they are equal.

    A player who chooses neither loses.
    """
    first, second = players.values()
    sides = []
    for player, aim in ((first, EQUAL), (second, DIFFERENT)):
        side = penny(await player.say(aim, system=task.get("system")))
        if side is None:
            return lost_by(player.name, players)
        sides.append(side)
    outcome = 1.0 if sides[0] == sides[1] else -1.0
    return {first.name: outcome, second.name: -outcome}


def penny(text: str) -> str | None:
    """Return the side that a turn names last, or None."""
    sides = re.findall(r"heads|tails", text.lower())
    return sides[-1] if sides else None


def random_nim(messages: Sequence[Message], rng: random.Random) -> str:
    """Make any valid move of Nim."""
    return "{} {}".format(*rng.choice(nim_moves(nim_piles(text_of(messages[-1]["content"])))))


def perfect_nim(messages: Sequence[Message], rng: random.Random) -> str:
    """Make an optimal move of Nim, and any valid one where all lose."""
    piles = nim_piles(text_of(messages[-1]["content"]))
    return "{} {}".format(*rng.choice(optimal_nim_moves(piles) or nim_moves(piles)))


def random_tic_tac_toe(messages: Sequence[Message], rng: random.Random) -> str:
    """Take any free cell."""
    cells = text_of(messages[-1]["content"]).split()
    return str(rng.choice(free_cells("".join(cells))))


def random_penny(messages: Sequence[Message], rng: random.Random) -> str:
    """Choose either side equally often."""
    return rng.choice(("heads", "tails"))


def nim_board(piles: Sequence[int]) -> str:
    """Return the piles as the players see them."""
    return " ".join(map(str, piles))


def nim_piles(text: str) -> list[int]:
    """Return the piles of the last line of a board."""
    return [int(number) for number in text.splitlines()[-1].split()]


def nim_move(text: str) -> Move | None:
    """Return the move that a turn contains: its last two numbers."""
    numbers = re.findall(r"\d+", text)
    return (int(numbers[-2]), int(numbers[-1])) if len(numbers) >= 2 else None


def nim_moves(piles: Sequence[int]) -> list[Move]:
    """Return all valid moves."""
    return [(pile, count) for pile, size in enumerate(piles, 1) for count in range(1, size + 1)]


def optimal_nim_moves(piles: Sequence[int]) -> list[Move]:
    """Return the moves that leave a nim-sum of 0; none if the position is lost."""
    total = reduce(xor, piles, 0)
    return [
        (pile, count) for pile, count in nim_moves(piles) if total ^ piles[pile - 1] ^ (piles[pile - 1] - count) == 0
    ]


def winner_of(cells: str) -> str | None:
    """Return the mark that has three in a row."""
    return next((cells[a] for a, b, c in LINES if cells[a] != FREE and cells[a] == cells[b] == cells[c]), None)


def free_cells(cells: str) -> list[int]:
    """Return the numbers of the free cells."""
    return [number for number, cell in enumerate(cells, 1) if cell == FREE]


def placed(cells: str, cell: int) -> str:
    """Return the cells after the next player took one."""
    return cells[:cell] + "xo"[9 - cells.count(FREE) & 1] + cells[cell + 1 :]


def symmetries() -> list[tuple[int, ...]]:
    """Return the orders of the cells that show the same board turned or mirrored, [8]."""
    found: list[tuple[int, ...]] = []
    order = tuple(range(9))
    for _ in range(4):
        found += [order, tuple(order[place] for place in MIRRORED)]
        order = tuple(order[place] for place in TURNED)
    return found


@cache
def canonical_order(cells: str) -> tuple[int, ...]:
    """Return the order of the cells that shows the board as the first of all boards that are equal to it."""
    return min(symmetries(), key=lambda order: [cells[cell] for cell in order])


@cache
def tic_tac_toe_value(cells: str) -> int:
    """Return the outcome under perfect play for the player to move: 1, 0 or -1."""
    if winner_of(cells) is not None:
        return -1
    return max((-tic_tac_toe_value(placed(cells, cell - 1)) for cell in free_cells(cells)), default=0)
