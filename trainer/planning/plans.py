"""`plan`: distribute trajectories over ranks and micro-batches within a token budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agentloop.errors import UserError
from agentloop.trainer.planning.costs import CostModel
from agentloop.trainer.planning.lockstep import Row, in_lockstep, load_of, row_cost
from agentloop.trainer.planning.packing import Pool, pack, spread

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Plan:
    """`ranks[r][m]` is the list of indices in micro-batch m of rank r."""

    ranks: list[list[list[int]]]
    balance: float = 1.0
    """Cost of all sequences divided by the cost of all ranks' time, waiting included, in (0, 1]; at 1 no rank waits."""

    @property
    def num_micro_batches(self) -> int:
        """Largest number of micro-batches of a rank."""
        return max((len(rows) for rows in self.ranks), default=0)


def plan(
    lengths: Sequence[int],
    *,
    ranks: int,
    token_budget: int,
    cost: Callable[[int], float] | Sequence[float] | None = None,
    lockstep: bool = True,
    per_micro_batch: float | None = None,
    small_ends: bool = False,
) -> Plan:
    """Distribute sequences over ranks and micro-batches of at most `token_budget` tokens.

    Every index is placed exactly once. With `lockstep`, ranks wait for each other after each micro-batch: all ranks
    have the same number of micro-batches, and those that run at the same time cost about the same. Some are empty if
    there are too few sequences. Without `lockstep` only the total cost of each rank matters.

    The most expensive micro-batches come first, so one that needs too much memory fails at once. With `small_ends` the
    cheapest are at both ends, which shortens the bubbles of a pipeline. `cost` maps a length to its cost, or lists the
    cost of each sequence; by default it is the length. `per_micro_batch` is the fixed cost of a micro-batch; by default
    that of the `CostModel` passed as `cost`, or else 0.

    Raises `UserError` if a single sequence is above the budget, and `ValueError` for a length below 1 or no ranks.
    """
    _check(lengths, ranks, token_budget)
    if not lengths:
        return Plan([[] for _ in range(ranks)])
    costs = _costs(lengths, cost)
    pool = Pool(range(len(lengths)), lengths, costs)
    if lockstep:
        if per_micro_batch is None:
            per_micro_batch = cost.per_micro_batch if isinstance(cost, CostModel) else 0.0
        rows = in_lockstep(pool, costs, ranks, token_budget, per_micro_batch)
        per_rank = _ranks_of(rows, costs, ranks)
        makespan = sum(row_cost(row, costs) for row in rows)
    else:
        shares = spread(pool, ranks)
        assert shares is not None, "spreading cannot fail without a budget"
        per_rank = [
            sorted(pack(Pool(share, lengths, costs), token_budget), key=lambda bin_: -load_of(bin_, costs))
            for share in shares
        ]
        makespan = max(load_of(share, costs) for share in shares)
    if small_ends:
        per_rank = [_small_at_both_ends(bins) for bins in per_rank]
    return Plan(per_rank, balance=min(sum(costs) / (ranks * makespan), 1.0) if makespan > 0 else 1.0)


def _check(lengths: Sequence[int], ranks: int, budget: int) -> None:
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}, but a plan needs at least one rank")
    for index, length in enumerate(lengths):
        if length < 1:
            raise ValueError(f"sequence {index} has {length} tokens, but needs at least one")
        if length > budget:
            raise UserError(
                f"Sequence {index} has {length} tokens, more than the token_budget of {budget} of a micro-batch. "
                f"Set token_budget to at least {length}, or limit trajectories with limits.max_tokens."
            )


def _costs(lengths: Sequence[int], cost: Callable[[int], float] | Sequence[float] | None) -> list[float]:
    if cost is None:
        return [float(length) for length in lengths]
    if callable(cost):
        return [float(cost(length)) for length in lengths]
    if len(cost) != len(lengths):
        raise ValueError(f"{len(cost)} costs for {len(lengths)} sequences")
    return [float(value) for value in cost]


def _ranks_of(rows: Sequence[Row], costs: Sequence[float], ranks: int) -> list[list[list[int]]]:
    """Assign the micro-batches of each row to ranks: the most expensive to the rank with the least cost so far."""
    per_rank: list[list[list[int]]] = [[] for _ in range(ranks)]
    totals = [0.0] * ranks
    for row in rows:
        waiting = sorted(range(ranks), key=lambda rank: (totals[rank], rank))
        for rank, bin_ in zip(waiting, sorted(row, key=lambda bin_: -load_of(bin_, costs)), strict=True):
            per_rank[rank].append(bin_)
            totals[rank] += load_of(bin_, costs)
    return per_rank


def _small_at_both_ends(largest_first: list[T]) -> list[T]:
    return largest_first[::2][::-1] + largest_first[1::2]
