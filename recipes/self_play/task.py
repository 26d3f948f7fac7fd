"""Rows of the games: training plays against itself, and the held-out games are against a fixed opponent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

NIM = (
    "You play Nim. Each turn you take any number of objects from one pile; whoever takes the last object wins. You see "
    "the sizes of the piles. Write your move as the number of the pile and the number of objects, such as 1 2, on the "
    "last line."
)


def rows(
    num_rows: int = 4096,
    *,
    piles: Sequence[int] = (3, 4, 5),
    system: str | None = NIM,
    opponent: Any = None,
) -> Iterator[dict[str, Any]]:
    """Yield games. With an `opponent`, it plays the second seat, and `seat` lets the model begin every other game."""
    for number in range(num_rows):
        row: dict[str, Any] = {"id": f"game-{number}", "piles": list(piles), "seat": number % 2}
        if system is not None:
            row["system"] = system
        if opponent is not None:
            row["players"] = {"second": opponent}
        yield row
