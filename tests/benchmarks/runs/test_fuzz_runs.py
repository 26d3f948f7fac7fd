"""The fuzz of whole runs: its settings come from the schema, and a few cases of it pass."""

import random
from pathlib import Path

import pytest

from agentloop.config.run import RunConfig
from benchmarks.runs.fuzz_runs import case_of, fuzz
from benchmarks.runs.fuzz_settings import LEFT_OUT, RANGES, draw, fields, is_drawn, settings

_UNTYPED = {
    "rendering.chat_template_kwargs",
    "algorithm.advantage_options",
    "learner.loss_options",
    "learner.betas",
    "critic.model",
    "process_reward.model",
    "rendering.inline",
}
"""Settings whose type says too little to draw a value."""


def test_every_setting_of_the_config_is_drawn_or_left_out_for_a_reason():
    drawable = {key for key, _, _ in fields(RunConfig) if is_drawn(key)}
    drawn = {
        key
        for key, annotation, default in fields(RunConfig)
        if key in drawable
        and any(draw(random.Random(seed), annotation, default) not in (..., None) for seed in range(9))
    }
    assert (drawable | set(RANGES)) - drawn - set(RANGES) == _UNTYPED
    assert set(RANGES) <= {key for key, _, _ in fields(RunConfig)}
    known = [key for key, _, _ in fields(RunConfig)]
    for key in (key for keys in LEFT_OUT for key in keys.split()):
        assert any(each == key or each.startswith(f"{key}.") for each in known), key


def test_a_seed_draws_the_same_settings_and_seeds_differ():
    assert settings(random.Random(3)) == settings(random.Random(3))
    assert len({repr(settings(random.Random(seed))) for seed in range(20)}) == 20


def test_settings_that_do_not_agree_are_refused_by_name():
    """`case_of` asserts that each refusal names a setting."""
    cases = [case_of(seed, Path("/model")) for seed in range(30)]
    assert sum(len(case.refused) for case in cases) > 10
    assert {case.labels["mode"] for case in cases} == {"on_policy", "stream", "stale", "partial"}


@pytest.mark.slow
def test_random_runs_end_and_account_for_every_episode():
    results = fuzz(iter(range(7000, 8000)), seconds=30)
    assert results
    assert [(result["seed"], result["problems"]) for result in results if result["problems"]] == []
