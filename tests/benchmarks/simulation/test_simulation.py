"""Whole runs on a virtual clock: the figures depend on nothing but the code."""

import pytest

from agentloop.recipes.tiny.tokenizer import build_tokenizer
from benchmarks.simulation import Machine, Workload, simulate, simulate_without_barrier

pytestmark = pytest.mark.slow

SHAPE = {"steps": 6, "groups_per_step": 8, "group_size": 4}
MACHINE = Machine(concurrency=16)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(folder)
    return folder


def _run(model, mode, bound=None, **staleness):
    settings = {"mode": mode, "max_staleness": bound, "allow_uncorrected": True, **staleness}
    return simulate(Workload(), MACHINE, model=model, **SHAPE, staleness=settings)


@pytest.fixture(scope="module")
def outcomes(model):
    modes = {"on_policy": None, "stream": 2, "stale": 2, "partial": 2}
    return {mode: _run(model, mode, bound) for mode, bound in modes.items()}


def test_all_modes_do_the_same_work_and_the_freer_one_is_faster(model, outcomes):
    bare = simulate_without_barrier(Workload(), MACHINE, model=model, **SHAPE)
    assert {outcome.tokens for outcome in outcomes.values()} == {bare.tokens}
    assert {len(outcome.episodes) for outcome in outcomes.values()} == {6 * 8 * 4}
    seconds = [outcomes[mode].seconds for mode in ("on_policy", "stream", "stale", "partial")]
    assert seconds == sorted(seconds, reverse=True), seconds
    assert bare.seconds < outcomes["partial"].seconds < outcomes["on_policy"].seconds / 2


def test_only_partial_mixes_versions_in_a_trajectory_and_none_is_too_old(outcomes):
    mixed = {mode: [line["staleness/mixed"] for line in outcomes[mode].metrics] for mode in ("stream", "stale")}
    assert set(mixed["stream"]) == set(mixed["stale"]) == {0.0}
    assert max(line["staleness/mixed"] for line in outcomes["partial"].metrics) > 0.1
    for mode in ("stream", "stale", "partial"):
        assert max(line["staleness/max"] for line in outcomes[mode].metrics) <= 2
    assert "staleness/max" not in outcomes["on_policy"].metrics[0]


def test_a_simulation_is_repeatable(model, outcomes):
    again = _run(model, "partial", 2)
    assert again.seconds == outcomes["partial"].seconds
    assert again.metrics == outcomes["partial"].metrics


def test_dropping_stragglers_is_faster_counted_and_biased(model, outcomes):
    dropping = _run(model, "partial", 1, when_late="drop")
    waiting = _run(model, "partial", 1)
    assert dropping.seconds < waiting.seconds
    last = dropping.metrics[-1]
    assert last["queue/dropped/late"] > 0
    assert last["time/bias_seconds"] < 1 < 1.001 + waiting.metrics[-1]["time/bias_seconds"]
    assert waiting.metrics[-1]["time/bias_seconds"] == pytest.approx(1.0)


def test_masked_stragglers_hold_nothing_up_and_no_episode_is_lost(model, outcomes):
    masking = _run(model, "partial", 1, when_late="mask")
    waiting = _run(model, "partial", 1)
    assert masking.seconds < waiting.seconds
    assert masking.tokens == waiting.tokens
    assert masking.metrics[-1]["queue/trained"] == 6 * 8 * 4
    assert max(line["staleness/max"] for line in masking.metrics) <= 1
    assert 0 < max(line["staleness/masked"] for line in masking.metrics) < 0.5
    assert {line["staleness/masked"] for line in waiting.metrics} == {0.0}


def test_a_group_is_complete_without_its_slowest_episodes(model, outcomes):
    cut = _run(model, "on_policy", cut={"extra_episodes": 1, "deadline": 200.0, "min_episodes": 3})
    assert cut.seconds < outcomes["on_policy"].seconds
    sizes = {line["learner/num_trajectories"] for line in cut.metrics}
    assert max(sizes) <= 8 * 4
    assert min(sizes) >= 8 * 3
