from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import UserError
from agentloop.trainer.planning import CostModel, plan

_LENGTHS = st.lists(st.integers(1, 100), max_size=80)


@given(_LENGTHS, st.integers(1, 5), st.integers(100, 300), st.booleans(), st.floats(0, 1))
def test_every_index_is_placed_once_within_the_budget(
    lengths: list[int], ranks: int, budget: int, lockstep: bool, quadratic: float
):
    cost = CostModel(1.0, quadratic)
    planned = plan(lengths, ranks=ranks, token_budget=budget, cost=cost, lockstep=lockstep)
    assert len(planned.ranks) == ranks
    placed = [index for rows in planned.ranks for row in rows for index in row]
    assert sorted(placed) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= budget for rows in planned.ranks for row in rows)
    if lockstep:
        assert len({len(rows) for rows in planned.ranks}) == 1
    else:
        assert all(rows and all(rows) for rows in planned.ranks if rows)
    assert plan(lengths, ranks=ranks, token_budget=budget, cost=cost, lockstep=lockstep) == planned


@given(_LENGTHS.filter(bool), st.integers(1, 4))
def test_at_most_as_many_micro_batches_as_first_fit(lengths: list[int], ranks: int):
    budget = 100
    planned = plan(lengths, ranks=ranks, token_budget=budget)
    # No two bins of a first-fit packing fit into one bin, so all but one are more than half full.
    assert planned.num_micro_batches <= -(-(2 * sum(lengths) // budget + 1) // ranks)


def test_micro_batches_that_run_together_cost_the_same():
    lengths = [8, 8, 8, 8, 4, 4, 4, 4, 1, 1, 1, 1]
    planned = plan(lengths, ranks=4, token_budget=13)
    assert [[sorted(lengths[index] for index in row) for row in rows] for rows in planned.ranks] == [[[1, 4, 8]]] * 4


def test_ranks_are_balanced_by_cost_and_not_by_length():
    # A length of 10 costs 100, as much as four of length 5.
    planned = plan([10, 5, 5, 5, 5], ranks=2, token_budget=100, cost=lambda n: float(n * n), lockstep=False)
    assert sorted(sorted(row) for rows in planned.ranks for row in rows) == [[0], [1, 2, 3, 4]]


def test_a_plan_without_sequences_is_empty():
    assert plan([], ranks=2, token_budget=10).ranks == [[], []]
    assert plan([], ranks=2, token_budget=10).num_micro_batches == 0


def test_ranks_without_sequences_get_empty_micro_batches():
    assert sorted(plan([3], ranks=3, token_budget=10).ranks) == [[[]], [[]], [[0]]]


def test_impossible_lengths_are_refused():
    with pytest.raises(UserError, match=r"Sequence 1 has 11 tokens.*Set token_budget to at least 11"):
        plan([3, 11], ranks=1, token_budget=10)
    with pytest.raises(ValueError, match="sequence 0 has 0 tokens"):
        plan([0], ranks=1, token_budget=10)


def test_costs_can_be_given_per_sequence():
    # Sequences of one length can cost different amounts, e.g. for their images.
    planned = plan([5, 5, 5, 5], ranks=2, token_budget=15, cost=[3.0, 1.0, 1.0, 1.0], lockstep=False)
    assert sorted(sorted(row) for rows in planned.ranks for row in rows) == [[0], [1, 2, 3]]
    assert planned.balance == 1.0
    with pytest.raises(ValueError, match="1 costs for 2 sequences"):
        plan([5, 5], ranks=1, token_budget=10, cost=[1.0])


@given(_LENGTHS.filter(bool), st.integers(1, 5), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_the_sequences_does_not_matter(lengths: list[int], ranks: int, lockstep: bool, random: Random):
    shuffled = list(lengths)
    random.shuffle(shuffled)
    cost = CostModel(1.0, 0.1)

    def planned(lengths: list[int]) -> list[list[list[int]]]:
        found = plan(lengths, ranks=ranks, token_budget=150, cost=cost, lockstep=lockstep)
        return [[[lengths[index] for index in row] for row in rows] for rows in found.ranks]

    assert planned(lengths) == planned(shuffled)


@given(_LENGTHS.filter(bool), st.integers(1, 4), st.booleans())
def test_balance_is_the_work_over_the_time(lengths: list[int], ranks: int, lockstep: bool):
    planned = plan(lengths, ranks=ranks, token_budget=150, cost=lambda n: float(n * n), lockstep=lockstep)
    loads = np.zeros((ranks, planned.num_micro_batches))
    for rank, rows in enumerate(planned.ranks):
        for number, row in enumerate(rows):
            loads[rank, number] = sum(lengths[index] ** 2 for index in row)
    time = loads.max(axis=0).sum() if lockstep else loads.sum(axis=1).max()
    assert planned.balance == pytest.approx(loads.sum() / ranks / time)


@given(_LENGTHS, st.integers(1, 4), st.booleans())
def test_small_micro_batches_at_both_ends(lengths: list[int], ranks: int, lockstep: bool):
    planned = plan(lengths, ranks=ranks, token_budget=120, lockstep=lockstep, small_ends=True)
    largest_first = plan(lengths, ranks=ranks, token_budget=120, lockstep=lockstep)
    assert sorted(map(sorted, planned.ranks[0])) == sorted(map(sorted, largest_first.ranks[0]))
    # The load of a row is that of its most expensive micro-batch.
    loads = [
        max(sum(lengths[index] for index in rows[number]) if number < len(rows) else 0 for rows in planned.ranks)
        for number in range(planned.num_micro_batches if lockstep else 0)
    ]
    top = loads.index(max(loads)) if loads else 0
    assert loads[: top + 1] == sorted(loads[: top + 1])
    assert loads[top:] == sorted(loads[top:], reverse=True)


@pytest.mark.parametrize(("per_token", "least"), [(10_400, 0.86), (51_000, 0.93)])
def test_ranks_wait_little_despite_a_long_tail_of_lengths(per_token: int, least: float):
    """Plan 512 episodes on 8 ranks with the per-token costs of Qwen3 0.6B (10,400) and 8B (51,000)."""
    cost = CostModel(per_token, 1.0, per_micro_batch=512 * per_token)
    in_lockstep, one_barrier, rows = [], [], []
    for seed in range(8):
        drawn = np.random.default_rng(seed).lognormal(np.log(4096), 1.0, 512)
        lengths = drawn.clip(64, 65536).astype(int).tolist()
        planned = plan(lengths, ranks=8, token_budget=65536, cost=cost)
        in_lockstep.append(planned.balance)
        rows.append(planned.num_micro_batches - sum(lengths) / (8 * 65536))
        one_barrier.append(plan(lengths, ranks=8, token_budget=65536, cost=cost, lockstep=False).balance)
    assert np.mean(in_lockstep) > least
    assert min(one_barrier) > 0.97
    assert max(rows) < 3  # nearly as few as the budget allows


def test_a_cost_per_micro_batch_keeps_their_number_low():
    lengths = [100, *[60] * 3, *[20] * 40]
    free = plan(lengths, ranks=2, token_budget=100, cost=CostModel(1.0, 1.0))
    costly = plan(lengths, ranks=2, token_budget=100, cost=CostModel(1.0, 1.0, per_micro_batch=1e6))
    assert costly.num_micro_batches <= free.num_micro_batches
    assert costly.num_micro_batches == -(-sum(lengths) // 200)
