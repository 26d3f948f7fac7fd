"""Seconds of training count without evaluations, up to the first evaluation that reaches a reward."""

import argparse
import json

import pytest

from benchmarks.side_by_side.agentloop_run import curve_of, new_curve
from benchmarks.side_by_side.table import table


def test_a_curve_leaves_out_the_seconds_of_evaluations(tmp_path):
    lines = [
        {"step": 0, "eval/reward/mean": 0.1, "time/eval": 9.0},
        {"step": 1, "reward/mean": 0.2, "time/step": 2.0},
        {"step": 2, "reward/mean": 0.4, "eval/reward/mean": 0.5, "time/eval": 3.0, "time/step": 5.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert curve_of(tmp_path / "metrics.jsonl") == [
        {"step": 0, "seconds": 0.0, "eval_reward": 0.1},
        {"step": 1, "seconds": 2.0, "reward": 0.2},
        {"step": 2, "seconds": 4.0, "reward": 0.4, "eval_reward": 0.5},
    ]


def test_the_table_compares_at_the_highest_reward_that_all_curves_reach():
    fast = [
        {"step": 0, "seconds": 0.0, "eval_reward": 0.1},
        {"step": 1, "seconds": 2.0, "reward": 0.3, "eval_reward": 0.6},
    ]
    slow = [
        {"step": 0, "seconds": 0.0, "eval_reward": 0.1},
        {"step": 1, "seconds": 8.0, "reward": 0.3, "eval_reward": 0.2},
        {"step": 2, "seconds": 16.0, "reward": 0.3, "eval_reward": 0.5},
    ]
    found = table({"fast": [fast], "slow": [slow]})
    assert found["held_out_reward_that_all_reach"] == 0.5
    assert found["seconds_to_it"] == {"fast": [2.0], "slow": [16.0]}
    assert found["runs"]["slow"][0]["held_out"] == {0: 0.1, 1: 0.2, 2: 0.5}


def test_the_table_has_the_seconds_of_the_process_outside_of_steps():
    curve = [
        {"step": 0, "seconds": 0.0, "eval_reward": 0.1},
        {"step": 1, "seconds": 2.0, "reward": 0.3, "eval_reward": 0.6},
        {"process_seconds": 12.5, "evaluation_seconds": 3.0},
    ]
    (found,) = table({"one": [curve]})["runs"]["one"]
    assert found["outside_of_steps"] == 7.5
    assert found["training"] == [0.3]


def test_a_curve_without_evaluations_is_an_error_and_no_reward_of_zero():
    evaluated = [{"step": 0, "seconds": 0.0, "eval_reward": 0.1}, {"step": 1, "seconds": 2.0, "reward": 0.3}]
    silent = [{"step": 1, "seconds": 2.0, "reward": 0.3}]
    with pytest.raises(ValueError, match=r"Curve 1 of trl has no held-out reward"):
        table({"agentloop": [evaluated], "trl": [silent]})


def test_a_curve_whose_run_has_a_folder_is_refused(tmp_path):
    (tmp_path / "old").mkdir()
    assert new_curve(str(tmp_path / "new.jsonl")) == tmp_path / "new.jsonl"
    with pytest.raises(argparse.ArgumentTypeError, match="old exists"):
        new_curve(str(tmp_path / "old.jsonl"))
    with pytest.raises(argparse.ArgumentTypeError, match="has no suffix"):
        new_curve(str(tmp_path / "curve"))
