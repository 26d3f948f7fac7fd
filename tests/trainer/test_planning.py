import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3Config

from agentloop.errors import UserError
from agentloop.trainer.planning import CostModel, plan

_LENGTHS = st.lists(st.integers(1, 100), max_size=80)


@given(_LENGTHS, st.integers(1, 5), st.integers(100, 300), st.booleans(), st.floats(0, 1))
def test_every_index_once_and_never_above_the_budget(
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
def test_not_more_micro_batches_than_first_fit_could_need(lengths: list[int], ranks: int):
    budget = 100
    planned = plan(lengths, ranks=ranks, token_budget=budget)
    # No two bins of a first-fit packing fit into one, so all but one are more than half full.
    assert planned.num_micro_batches <= -(-(2 * sum(lengths) // budget + 1) // ranks)


def test_rows_that_run_together_cost_the_same():
    lengths = [8, 8, 8, 8, 4, 4, 4, 4, 1, 1, 1, 1]
    planned = plan(lengths, ranks=4, token_budget=13)
    assert [[sorted(lengths[index] for index in row) for row in rows] for rows in planned.ranks] == [[[1, 4, 8]]] * 4


def test_ranks_are_balanced_by_cost_and_not_by_length():
    # One of 10 costs 100, as many as 4 of 5.
    planned = plan([10, 5, 5, 5, 5], ranks=2, token_budget=100, cost=lambda n: float(n * n), lockstep=False)
    assert sorted(sorted(row) for rows in planned.ranks for row in rows) == [[0], [1, 2, 3, 4]]


def test_nothing_to_plan():
    assert plan([], ranks=2, token_budget=10).ranks == [[], []]
    assert plan([], ranks=2, token_budget=10).num_micro_batches == 0


def test_fewer_sequences_than_ranks_leave_rows_empty():
    assert sorted(plan([3], ranks=3, token_budget=10).ranks) == [[[]], [[]], [[0]]]


def test_a_sequence_above_the_budget_is_named():
    with pytest.raises(UserError, match=r"Sequence 1 has 11 tokens.*Set token_budget to at least 11"):
        plan([3, 11], ranks=1, token_budget=10)
    with pytest.raises(ValueError, match="sequence 0 has 0 tokens"):
        plan([0], ranks=1, token_budget=10)


def test_cost_of_a_small_model_by_hand():
    config = Qwen3Config(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=3,
        vocab_size=10,
    )
    weights = 2 * (8 * 12 + 2 * 8 * 6 + 12 * 8 + 3 * 8 * 16) + 8 * 10  # q, k and v, o, mlp; head
    cost = CostModel.from_config(config)
    assert cost.per_token == 6 * weights
    assert cost.per_token_pair == 3 * 2 * (2 * 2 * 12) / 2  # scores and values over half of the pairs
    assert cost(10) == 60 * weights + 100 * cost.per_token_pair
    assert CostModel.from_config(config, head_fraction=0.0).per_token == 6 * (weights - 80)
