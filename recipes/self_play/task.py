"""Rows of the games. Training plays against itself; the held-out games have an opponent that does not learn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from agentloop.recipes.self_play.games import NO_MARKS, free_cells, placed, winner_of

NIM = (
    "You play Nim. Each turn you take any number of objects from one pile; the player who takes the last object wins. "
    "You see the sizes of the piles. Write your move as the number of the pile and the number of objects, such as 1 2, "
    "on the last line."
)


def rows(
    num_rows: int = 4096,
    *,
    piles: Sequence[int] = (3, 4, 5),
    any_start: float = 0.0,
    system: str | None = NIM,
    opponent: Any = None,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yield games of Nim. `any_start` is the share of games that begin at any position that `piles` can lead to.

    With an `opponent`, it plays the second seat, and `seat` lets the model begin every other game. Players see the
    present board only (`forget`), and an invalid move costs twice as much as a lost game (`forfeit`).
    """
    positions = [list(each) for each in product(*(range(size + 1) for size in piles)) if any(each)]

    def start(rng: random.Random) -> dict[str, Any]:
        return {"piles": rng.choice(positions) if rng.random() < any_start else list(piles)}

    return _rows(num_rows, start, system, opponent, seed)


def tic_tac_toe_rows(
    num_rows: int = 4096,
    *,
    any_start: float = 0.0,
    canonical: bool = False,
    system: str | None = None,
    opponent: Any = None,
    seat: int | None = None,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yield games of tic-tac-toe; the options as in `rows`. Random positions follow up to eight random moves.

    With `canonical`, boards that are equal after turns and reflections look the same to the players, so they see 627
    positions instead of 4,520. With an `opponent` and `seat` 1, the model moves second in all games; with 0, first.
    """

    def start(rng: random.Random) -> dict[str, Any]:
        cells = random_cells(rng) if rng.random() < any_start else NO_MARKS
        return {"cells": cells, "canonical": canonical}

    for row in _rows(num_rows, start, system, opponent, seed):
        yield row if seat is None else row | {"seat": seat}


def pennies_rows(
    num_rows: int = 4096, *, system: str | None = None, opponent: Any = None, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield games of matching pennies; the options as in `rows`."""
    return _rows(num_rows, lambda rng: {}, system, opponent, seed)


def random_cells(rng: random.Random) -> str:
    """Return a position of tic-tac-toe that is not over, after up to eight random moves."""
    cells = NO_MARKS
    for _ in range(rng.randrange(9)):
        after = placed(cells, rng.choice(free_cells(cells)) - 1)
        if winner_of(after) is not None:
            break
        cells = after
    return cells


def _rows(
    num_rows: int, start: Callable[[random.Random], dict[str, Any]], system: str | None, opponent: Any, seed: int
) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    for number in range(num_rows):
        row: dict[str, Any] = {"id": f"game-{number}", "seat": number % 2, "forget": True, "forfeit": -2.0}
        row |= start(rng)
        if system is not None:
            row["system"] = system
        if opponent is not None:
            row["players"] = {"second": opponent}
        yield row
