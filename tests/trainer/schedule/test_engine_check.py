"""A run whose engine computes another model than its learner ends after its first step."""

import logging

import pytest

from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.schedule.engine_check import check_engine


def config(**sections):
    return RunConfig.model_validate(
        {"model": "./model", "data": {"train": "rows.jsonl"}, "env": {"reward": "exact"}, **sections}
    )


@pytest.mark.parametrize("difference", [0.31, float("nan")])
def test_a_difference_that_no_rounding_explains_ends_the_run(difference):
    with pytest.raises(UserError) as caught:
        check_engine({"logprob_diff": difference}, config(), step=1)
    for word in ("'hf'", f"{difference:.3g} nats", "run.max_logprob_diff is 0.3", "docs/reference/models.md"):
        assert word in str(caught.value)


def test_a_smaller_one_is_logged_and_roundings_are_not(caplog):
    with caplog.at_level(logging.WARNING):
        check_engine({"logprob_diff": 0.04}, config(), step=1)
        assert not caplog.records
        check_engine({"logprob_diff": 0.15}, config(), step=1)
    assert "0.15 nats" in caplog.text


@pytest.mark.parametrize(
    "sections",
    [
        {"run": {"max_logprob_diff": None}},
        {"run": {"max_logprob_diff": 3}},
        {"engine": {"name": "scripted"}},
        {"sampling": {"top_p": 0.9}},
        {"sampling": {"top_k": 5}},
    ],
)
def test_differences_that_are_expected_do_not_end_the_run(sections):
    check_engine({"logprob_diff": 2.0}, config(**sections), step=1)


def test_a_loss_that_does_not_compare_is_not_checked():
    check_engine({}, config(), step=1)
