"""Plans in lockstep: all ranks compute their micro-batches together and wait for the slowest.

A row has one micro-batch per rank, and costs as much as its most expensive micro-batch. The cost of attention grows
with the square of the length, so the longest sequences cost several times as much as the same number of tokens in short
sequences. A rank that must match such a cost exceeds its token budget. So these sequences go into as few rows as
possible: the first rows have the longest sequences, filled up with the longest others that fit below the highest cost.
The remaining sequences are many and short, and are spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentloop.trainer.planning.packing import Pool, fewest_bins, spread_over_few

Row = list[list[int]]
"""Micro-batches that all ranks run at the same time."""

_MOST_FILLED_ROWS = 3
"""Largest number of rows to try for the longest sequences; more only take time."""
_ROUNDING = 1 + 1e-9
"""Tolerance for rounding, so that another sequence with the same cost fits."""


def in_lockstep(pool: Pool, costs: Sequence[float], ranks: int, budget: int, cost_of_row: float) -> list[Row]:
    """Return rows, the most expensive first, and empty the pool.

    `cost_of_row` is the cost of each row in addition to its sequences.
    """
    best: list[Row] = []
    lowest = math.inf
    filled: list[Row] = []
    for _ in range(_MOST_FILLED_ROWS + 1):
        rows = filled + _even_rows(pool, costs, ranks, budget)
        makespan = sum(row_cost(row, costs) + cost_of_row for row in rows)
        if makespan < lowest:
            best, lowest = rows, makespan
        if not len(pool):
            break
        limit = pool.highest_cost * _ROUNDING
        filled.append([pool.take(budget, limit) for _ in range(ranks)])
    return sorted(best, key=lambda row: -row_cost(row, costs))


def load_of(indices: Sequence[int], costs: Sequence[float]) -> float:
    """Return the cost of a micro-batch."""
    return sum(costs[index] for index in indices)


def row_cost(row: Row, costs: Sequence[float]) -> float:
    """Return the cost of the most expensive micro-batch of a row, which the other ranks wait for."""
    return max(load_of(bin_, costs) for bin_ in row)


def _even_rows(pool: Pool, costs: Sequence[float], ranks: int, budget: int) -> list[Row]:
    """Return close to the minimal number of rows, each with micro-batches of about the same cost."""
    bins = spread_over_few(pool, budget, multiple=ranks)
    if bins is None:
        return _rows_one_by_one(pool.copy(), ranks, budget)
    bins.sort(key=lambda bin_: -load_of(bin_, costs))
    return [bins[start : start + ranks] for start in range(0, len(bins), ranks)]


def _rows_one_by_one(pool: Pool, ranks: int, budget: int) -> list[Row]:
    """Fill row after row with its share of the remaining cost, for sequences too long to be spread freely."""
    rows = []
    while len(pool):
        share = pool.total_cost / fewest_bins(pool, budget, ranks)
        limit = max(share, pool.highest_cost) * _ROUNDING
        rows.append([pool.take(budget, limit) for _ in range(ranks)])
    return rows
