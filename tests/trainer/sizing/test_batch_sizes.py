from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.run.checks import check_trainable
from agentloop.trainer.sizing.batch_sizes import BatchSizes

SIZES = BatchSizes(
    groups=16, group_size=8, mini_batches=3, steps=10, ranks=4, token_budget=16384, max_tokens=4096
)  # 128 trajectories


def test_derived_batch_sizes_follow_from_the_settings():
    assert SIZES.trajectories == 128
    assert (SIZES.smallest_update, SIZES.largest_update) == (42, 43)
    assert SIZES.most_micro_batches == 3  # 43 over 4 ranks of 4 in each
    assert list(SIZES.problems()) == []


def test_summary_lines_contain_the_numbers():
    lines = SIZES.lines()
    assert lines["episodes per step"] == "128 = 16 tasks x 8"
    assert lines["updates"] == "3 per step, of 42 or 43 episodes; 30 in all"
    assert lines["ranks"] == "4, with 10.75 episodes of an update each"
    assert "4 of the longest episodes (4096 tokens); at most 3 per rank" in lines["micro-batches"]


def test_budget_below_the_longest_trajectory_is_reported():
    [problem] = replace(SIZES, token_budget=4000).problems()
    assert "learner.token_budget is 4000 but limits.max_tokens is 4096" in problem
    assert "Set learner.token_budget=4096" in problem


def test_more_updates_than_trajectories_are_reported():
    [problem] = replace(SIZES, mini_batches=129).problems()
    assert "129, but a step has 128 trajectories" in problem
    assert "Set learner.mini_batches=128" in problem


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 12), st.integers(1, 64))
def test_suggested_fix_for_idle_ranks_works(groups: int, group_size: int, mini_batches: int, ranks: int):
    sizes = replace(SIZES, groups=groups, group_size=group_size, mini_batches=mini_batches, ranks=ranks)
    if mini_batches > sizes.trajectories:
        return
    problems = list(sizes.problems())
    assert bool(problems) == (sizes.trajectories // mini_batches < ranks)
    if problems:
        words = problems[0].replace(",", "").split()
        fixes = {word.split("=")[0]: int(word.split("=")[1]) for word in words if "=" in word}
        assert not list(replace(sizes, groups=fixes["algorithm.groups_per_step"]).problems())
        if "learner.mini_batches" in fixes:
            assert not list(replace(sizes, mini_batches=fixes["learner.mini_batches"]).problems())
        assert not list(replace(sizes, ranks=sizes.smallest_update).problems())


def test_ranks_without_a_trajectory_are_refused():
    config = RunConfig.model_validate(
        {"model": "m", "data": {"train": "t.jsonl"}, "env": {"reward": "exact"}, "algorithm": {"groups_per_step": 1}}
    )
    check_trainable(config)
    config = config.model_copy(update={"learner": config.learner.model_copy(update={"ranks": 16})})
    assert BatchSizes.of(config).ranks == 16
    with pytest.raises(UserError, match=r"8 trajectories .* for 16 ranks.*groups_per_step=2 or more"):
        check_trainable(config)
