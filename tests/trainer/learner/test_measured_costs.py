"""Plans follow measured times."""

import numpy as np
import pytest
from transformers import Qwen3Config

from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.learner.measured_costs import MeasuredCosts
from agentloop.trainer.model.row_layout import units
from agentloop.trainer.planning import CostModel, plan

CONFIG = Qwen3Config(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
EXPECTED = CostModel.from_config(CONFIG)


def _sample(length: int, group: str = "") -> Sample:
    mask = np.arange(length) >= length // 2
    zeros = np.zeros(length, np.float32)
    return Sample(np.ones(length, np.int32), mask, zeros, np.zeros(length, np.int32), group_id=group)


def test_ranks_finish_together_once_it_was_measured_that_attention_is_dearer_than_expected():
    lengths = [*[2000] * 3, *[300] * 40]
    samples = [_sample(length) for length in lengths]

    def seconds(index: int) -> float:  # attention counts thirty times what FLOPs say
        length = lengths[index]
        return 1e-12 * (EXPECTED.per_token * length + 30 * EXPECTED.per_token_pair * length**2)

    def planned(cost: CostModel) -> tuple[list[list[list[int]]], float]:
        ranks = plan(lengths, ranks=2, token_budget=4096, cost=cost, lockstep=False).ranks
        loads = [sum(seconds(index) for row in rows for index in row) for rows in ranks]
        return ranks, max(loads) / (sum(loads) / 2)

    ranks, before = planned(EXPECTED)
    costs = MeasuredCosts(EXPECTED)
    found = []
    for row in (row for rows in ranks for row in rows):
        measured = costs.measured(samples, units(samples, row, 4096, share=False))
        assert measured is not None
        found.append((measured, sum(map(seconds, row))))
    _, after = planned(costs.learn(found))
    assert before > 1.1
    assert after < 1.02


def test_a_row_with_a_shared_prefix_counts_the_computed_tokens():
    samples = [_sample(1000, "group") for _ in range(4)]
    [unit] = units(samples, range(4), 4096, share=True)
    assert unit.prefix == 500
    found = MeasuredCosts(EXPECTED).measured(samples, [unit])
    assert found is not None
    assert found.tokens == 500 + 4 * 500
    assert found.pair_cost == pytest.approx(EXPECTED.per_token_pair * (4 * 1000**2 - 3 * 500**2))


def test_nothing_measured_leaves_the_costs_as_they_are():
    assert MeasuredCosts(EXPECTED).measured([_sample(100)], []) is None
    assert MeasuredCosts(EXPECTED).learn([]) is EXPECTED
