"""Plans in lockstep: all ranks compute a micro-batch at the same time and wait for the slowest of them.

A row is one micro-batch of every rank; a plan takes the sum over its rows of the dearest. Attention grows with the
square of the length, so the longest sequences cost several times what the same tokens cost in short ones, and a rank
that must keep up with one soon has no room for more tokens. The fewer rows such a sequence is in, the better: the first
rows are made of the longest sequences there are, each filled up with the longest that fit below its dearest. The rest
is short and many, and spreads evenly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentloop.trainer.planning.packing import Pool, fewest_bins, spread_over_few

Row = list[list[int]]
"""The micro-batches of all ranks that run at the same time."""

_MOST_FILLED_ROWS = 3
"""Rows made of the longest sequences that are tried. More cost a micro-batch each and gain nothing."""
_ROUNDING = 1 + 1e-9
"""So that another sequence of the same cost fits."""


def in_lockstep(pool: Pool, costs: Sequence[float], ranks: int, budget: int, cost_of_row: float) -> list[Row]:
    """Rows, dearest first. `cost_of_row` is what each costs beyond its sequences. Empties the pool."""
    best: list[Row] = []
    lowest = math.inf
    filled: list[Row] = []
    for _ in range(_MOST_FILLED_ROWS + 1):
        rows = filled + _even_rows(pool, costs, ranks, budget)
        makespan = sum(dearest(row, costs) + cost_of_row for row in rows)
        if makespan < lowest:
            best, lowest = rows, makespan
        if not len(pool):
            break
        limit = pool.highest_cost * _ROUNDING
        filled.append([pool.take(budget, limit) for _ in range(ranks)])
    return sorted(best, key=lambda row: -dearest(row, costs))


def load_of(indices: Sequence[int], costs: Sequence[float]) -> float:
    """Cost of a micro-batch."""
    return sum(costs[index] for index in indices)


def dearest(row: Row, costs: Sequence[float]) -> float:
    """Cost of a row: of the micro-batch that the others wait for."""
    return max(load_of(bin_, costs) for bin_ in row)


def _even_rows(pool: Pool, costs: Sequence[float], ranks: int, budget: int) -> list[Row]:
    """Nearly as few rows as there can be; micro-batches of about the same cost run at the same time."""
    bins = spread_over_few(pool, budget, multiple=ranks)
    if bins is None:
        return _rows_one_by_one(pool.copy(), ranks, budget)
    bins.sort(key=lambda bin_: -load_of(bin_, costs))
    return [bins[start : start + ranks] for start in range(0, len(bins), ranks)]


def _rows_one_by_one(pool: Pool, ranks: int, budget: int) -> list[Row]:
    """Where sequences are too long for the budget to be spread freely: each row its share of what is left."""
    rows = []
    while len(pool):
        share = pool.total_cost / fewest_bins(pool, budget, ranks)
        limit = max(share, pool.highest_cost) * _ROUNDING
        rows.append([pool.take(budget, limit) for _ in range(ranks)])
    return rows
