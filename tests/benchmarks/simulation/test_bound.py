"""`least_seconds` against cases that can be computed by hand, and against whole simulated runs."""

import pytest

from agentloop.recipes.tiny.tokenizer import build_tokenizer
from benchmarks.simulation import Machine, Workload, least_seconds, simulate

SHAPE = {"steps": 5, "groups_per_step": 4, "group_size": 2}
ALIKE = Workload(turns=1, turns_sigma=0, turn_tokens=100, turn_sigma=0, tool_seconds=10, tool_sigma=0)
"""Two turns of 100 tokens and a call of 10 s in each episode."""


def test_where_the_machine_has_room_for_all_each_step_takes_its_longest_episode():
    machine = Machine(concurrency=1000, step_seconds=0.1, request_seconds=0.0, learner_step_seconds=3.0)
    assert least_seconds(ALIKE, machine, **SHAPE, max_staleness=0) == pytest.approx(5 * (30 + 3))
    # At 1 a group has two steps' time: one step in two waits for 30 s.
    assert least_seconds(ALIKE, machine, **SHAPE, max_staleness=1) == pytest.approx(2 * 33 + 3)


def test_where_the_machine_is_small_it_takes_the_work_of_all_episodes():
    machine = Machine(concurrency=4, step_seconds=0.1, request_seconds=0.0, learner_step_seconds=0.0)
    # 40 episodes of 20 s sampling and 10 s tool, 4 at a time.
    assert least_seconds(ALIKE, machine, **SHAPE, max_staleness=4) == pytest.approx(40 * 30 / 4, rel=1e-3)


@pytest.mark.parametrize("bound", [1, 2])
def test_no_simulated_run_is_faster(tmp_path, bound):
    build_tokenizer().save_pretrained(tmp_path)
    machine, workload = Machine(concurrency=8), Workload(max_tool_seconds=60.0)
    staleness = {"mode": "partial", "max_staleness": bound, "allow_uncorrected": True}
    run = simulate(workload, machine, model=tmp_path, **SHAPE, staleness=staleness)
    least = least_seconds(workload, machine, **SHAPE, max_staleness=bound)
    assert 0.4 * run.seconds < least < run.seconds
