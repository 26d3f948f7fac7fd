"""The log of verl becomes the same curve as those of other trainers."""

import json

from benchmarks.side_by_side.verl_run import curve_of, score


def test_a_curve_of_verl_has_the_seconds_of_steps_alone(tmp_path):
    lines = [
        {"step": 0, "data": {"val-core/sums/reward/mean@1": 0.25}},
        {"step": 1, "data": {"critic/score/mean": 0.5, "timing_s/step": 2.0}},
        {
            "step": 2,
            "data": {
                "critic/score/mean": 0.625,
                "timing_s/step": 5.0,
                "timing_s/testing": 3.5,
                "val-core/sums/reward/mean@1": 0.75,
            },
        },
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert curve_of(tmp_path / "log.jsonl") == [
        {"step": 0, "seconds": 0.0, "eval_reward": 0.25},
        {"step": 1, "seconds": 2.0, "reward": 0.5},
        {"step": 2, "seconds": 7.0, "reward": 0.625, "eval_reward": 0.75},
    ]


def test_the_reward_of_verl_compares_the_last_answer():
    assert score("sums", "<answer>40</answer> no: <answer> 41 </answer>", "41") == 1.0
    assert score("sums", "41", "41") == 0.0
