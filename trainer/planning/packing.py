"""Pack sequences into bins of about the same cost within a token budget."""

from __future__ import annotations

import copy
import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

_LOOKS = 1
"""Average number of full bins per sequence that `spread` skips before it gives up."""

_FULL = 0.97
"""Fraction of the budget to which bins can usually be filled at equal cost."""


class Pool:
    """Sequences not yet in a bin, sorted by length; longer ones usually cost more."""

    def __init__(self, indices: Iterable[int], lengths: Sequence[int], costs: Sequence[float]) -> None:
        self.indices = sorted(indices, key=lambda index: (lengths[index], costs[index], index))
        self.lengths = [lengths[index] for index in self.indices]
        self.costs = [costs[index] for index in self.indices]
        # The running maximum allows binary search by cost even if costs do not increase with length.
        self._ceilings = _running_maximum(self.costs)
        self.num_tokens = sum(self.lengths)
        self.total_cost = sum(self.costs)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def highest_cost(self) -> float:
        """Cost of the most expensive sequence."""
        return self._ceilings[-1]

    def take(self, tokens: float, cost: float) -> list[int]:
        """Remove and return a bin within `tokens` and `cost`, repeatedly adding the longest sequence that fits."""
        taken: list[int] = []
        while True:
            place = min(bisect_right(self.lengths, tokens), bisect_right(self._ceilings, cost)) - 1
            if place < 0:
                return taken
            tokens -= self.lengths[place]
            cost -= self.costs[place]
            taken.append(self._pop(place))

    def copy(self) -> Pool:
        """Return an independent pool with the same sequences."""
        other = copy.copy(self)
        other.indices, other.lengths, other.costs = self.indices[:], self.lengths[:], self.costs[:]
        other._ceilings = self._ceilings[:]
        return other

    def _pop(self, place: int) -> int:
        self.num_tokens -= self.lengths.pop(place)
        self.total_cost -= self.costs.pop(place)
        self._ceilings.pop(place)
        return self.indices.pop(place)


def _running_maximum(values: Iterable[float]) -> list[float]:
    highest = 0.0
    return [highest := max(highest, value) for value in values]


def pack(pool: Pool, budget: int) -> list[list[int]]:
    """Return bins of about the same cost within the budget, close to the minimal number."""
    bins = spread_over_few(pool, budget)
    return bins if bins is not None else _best_fit(pool, budget)


def spread_over_few(pool: Pool, budget: int, *, multiple: int = 1) -> list[list[int]] | None:
    """Spread the pool over the minimal number of bins, a multiple of `multiple`, or a few more; None if that fails."""
    fewest = fewest_bins(pool, budget, multiple)
    more = fewest_bins(pool, _FULL * budget, multiple)
    bins = spread(pool, fewest, budget)
    return spread(pool, more, budget) if bins is None and more > fewest else bins


def fewest_bins(pool: Pool, budget: float, multiple: int) -> int:
    """Return the number of bins of `budget` tokens that the pool's tokens fill, rounded up to a multiple."""
    return math.ceil(pool.num_tokens / (budget * multiple)) * multiple


def spread(pool: Pool, count: int, budget: float = float("inf")) -> list[list[int]] | None:
    """Return the pool in `count` bins within the budget: the longest first, each to the cheapest bin with room.

    This is longest processing time first (Graham, 1969). Returns None if a sequence fits in no bin, or if finding room
    takes too long.
    """
    bins: list[list[int]] = [[] for _ in range(count)]
    room = [budget] * count
    heap = [(0.0, number) for number in range(count)]
    shortest = pool.lengths[0] if len(pool) else 0
    patience = _LOOKS * len(pool)
    for place in range(len(pool) - 1, -1, -1):
        length, full = pool.lengths[place], []
        while heap and room[heap[0][1]] < length:
            full.append(heapq.heappop(heap))
        patience -= len(full)
        if not heap or patience < 0:
            return None
        load, number = heap[0]
        bins[number].append(pool.indices[place])
        room[number] -= length
        heapq.heapreplace(heap, (load + pool.costs[place], number))
        for entry in full:
            if room[entry[1]] >= shortest:
                heapq.heappush(heap, entry)
    return bins


def _best_fit(pool: Pool, budget: int) -> list[list[int]]:
    """Pack by best-fit decreasing: at most 11/9 of the fewest bins, plus one (Johnson, 1974)."""
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (free tokens, bin), ascending
    for place in range(len(pool) - 1, -1, -1):
        length = pool.lengths[place]
        found = bisect_left(rooms, (length, 0))
        if found == len(rooms):
            room, number = budget, len(bins)
            bins.append([])
        else:
            room, number = rooms.pop(found)
        bins[number].append(pool.indices[place])
        insort(rooms, (room - length, number))
    return bins
