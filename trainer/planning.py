"""Which trajectory goes to which data-parallel rank and micro-batch.

Pure functions over lengths: every rank computes the same plan from the same lengths, nothing is sent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentloop.errors import UserError


@dataclass(slots=True, frozen=True)
class CostModel:
    """FLOPs of one sequence, forward and backward: per_token * n + per_token_pair * n^2."""

    per_token: float
    per_token_pair: float

    def __call__(self, length: int) -> float:
        return self.per_token * length + self.per_token_pair * length * length

    @classmethod
    def from_config(cls, hf_config: Any, *, head_fraction: float = 1.0) -> CostModel:
        """From a transformers config of a decoder: grouped-query attention, gated MLP or experts, and the LM head.

        `head_fraction` is the share of tokens whose logits are computed. Multiply-adds count as two, the backward as
        two forwards; attention is causal, so half of the pairs. Norms, rotary and softmax are left out.
        """
        config = hf_config.get_text_config() if hasattr(hf_config, "get_text_config") else hf_config
        hidden: int = config.hidden_size
        heads: int = config.num_attention_heads
        kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        head_dim: int = getattr(config, "head_dim", None) or hidden // heads
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        experts: int = getattr(config, "num_experts_per_tok", None) or 0
        if experts:
            mlp = 3 * hidden * (getattr(config, "moe_intermediate_size", None) or config.intermediate_size) * experts
        else:
            mlp = 3 * hidden * config.intermediate_size
        layers: int = config.num_hidden_layers
        forward = 2 * (layers * (attention + mlp) + head_fraction * hidden * config.vocab_size)
        forward_pair = 2 * 2 * layers * heads * head_dim / 2
        return cls(per_token=3 * forward, per_token_pair=3 * forward_pair)


@dataclass(slots=True, frozen=True)
class Plan:
    """`ranks[r][m]` is the list of indices in micro-batch m of rank r."""

    ranks: list[list[list[int]]]

    @property
    def num_micro_batches(self) -> int:
        """Of the rank that has most."""
        return max((len(rows) for rows in self.ranks), default=0)


def plan(
    lengths: Sequence[int],
    *,
    ranks: int,
    token_budget: int,
    cost: Callable[[int], float] | None = None,
    lockstep: bool = True,
) -> Plan:
    """Distribute sequences over ranks and micro-batches of at most `token_budget` tokens.

    Every index is placed exactly once. With `lockstep` all ranks have the same number of micro-batches, and those that
    run at the same time cost about the same (ranks wait for each other after each); some are empty where there are
    fewer sequences than places. Without it only the sum of each rank matters. The default cost is the length.

    Raises `UserError` where a sequence alone is above the budget, `ValueError` for a length below 1 or no ranks.
    """
    if ranks < 1:
        raise ValueError(f"a plan needs at least one rank, got {ranks}")
    for index, length in enumerate(lengths):
        if length < 1:
            raise ValueError(f"sequence {index} has {length} tokens")
        if length > token_budget:
            raise UserError(
                f"Sequence {index} has {length} tokens, more than the token_budget of {token_budget} of a micro-batch. "
                f"Set token_budget to at least {length}, or limit trajectories with limits.max_tokens."
            )
    if not lengths:
        return Plan([[] for _ in range(ranks)])
    costs = [float(length if cost is None else cost(length)) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda index: (-costs[index], index))
    if lockstep:
        return Plan(_in_lockstep(order, lengths, costs, ranks, token_budget))
    return Plan([_pack(share, lengths, costs, 1, token_budget) for share in _spread(order, costs, ranks)])


def _in_lockstep(
    order: list[int], lengths: Sequence[int], costs: list[float], ranks: int, budget: int
) -> list[list[list[int]]]:
    bins = _pack(order, lengths, costs, ranks, budget)
    loads = [sum(costs[index] for index in items) for items in bins]
    by_load = sorted(range(len(bins)), key=lambda b: (-loads[b], b))
    rows: list[list[list[int]]] = [[] for _ in range(ranks)]
    totals = [0.0] * ranks
    # Neighbours in load run at the same time; within a row the heaviest goes to the rank that has least so far.
    for start in range(0, len(by_load), ranks):
        waiting = sorted(range(ranks), key=lambda rank: (totals[rank], rank))
        for rank, b in zip(waiting, by_load[start : start + ranks], strict=True):
            rows[rank].append(bins[b])
            totals[rank] += loads[b]
    return rows


def _pack(order: list[int], lengths: Sequence[int], costs: list[float], multiple: int, budget: int) -> list[list[int]]:
    """Bins within the budget, as few as can be found in a multiple of `multiple`, of about the same cost."""
    if not order:
        return []
    total = sum(lengths[index] for index in order)
    fewest = -(-total // (budget * multiple)) * multiple
    first_fit = _first_fit(sorted(order, key=lambda index: (-lengths[index], index)), lengths, budget)
    most = -(-len(first_fit) // multiple) * multiple
    for count in range(fewest, most + 1, multiple):
        bins = _balanced(order, lengths, costs, count, budget)
        if bins is not None:
            return bins
    return first_fit + [[] for _ in range(most - len(first_fit))]


def _first_fit(order: list[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing: at most 11/9 of the fewest bins, plus one."""
    bins: list[list[int]] = []
    room: list[int] = []
    for index in order:
        b = next((b for b, free in enumerate(room) if lengths[index] <= free), len(bins))
        if b == len(bins):
            bins.append([])
            room.append(budget)
        bins[b].append(index)
        room[b] -= lengths[index]
    return bins


def _balanced(
    order: list[int], lengths: Sequence[int], costs: list[float], count: int, budget: int
) -> list[list[int]] | None:
    """Longest processing time first into `count` bins: each sequence to the cheapest bin with room; None if stuck."""
    bins: list[list[int]] = [[] for _ in range(count)]
    room = [budget] * count
    heap = [(0.0, b) for b in range(count)]
    for index in order:
        full = []
        while heap and room[heap[0][1]] < lengths[index]:
            full.append(heapq.heappop(heap))
        if not heap:
            return None
        load, b = heap[0]
        bins[b].append(index)
        room[b] -= lengths[index]
        heapq.heapreplace(heap, (load + costs[index], b))
        for entry in full:
            heapq.heappush(heap, entry)
    return bins


def _spread(order: list[int], costs: list[float], ranks: int) -> list[list[int]]:
    """Each sequence, dearest first, to the rank that has least."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    heap = [(0.0, rank) for rank in range(ranks)]
    for index in order:
        load, rank = heap[0]
        shares[rank].append(index)
        heapq.heapreplace(heap, (load + costs[index], rank))
    return shares
