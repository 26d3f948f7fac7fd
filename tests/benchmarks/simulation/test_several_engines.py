"""Rounds on several simulated engines, with turns that stay and with turns that move."""

import pytest

from agentloop.recipes.tiny.tokenizer import build_tokenizer
from benchmarks.simulation import Machine, Workload, simulate_rounds

SHAPE = {"engines": 2, "rounds": 2, "groups": 4, "group_size": 2}
UNEQUAL = Workload(turns=4, turns_sigma=0.8, tool_seconds=0.001, tool_sigma=0.1, between_tasks=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(folder)
    return folder


def test_turns_that_move_do_the_same_work_and_help_where_a_request_takes_time(model):
    machine = Machine(concurrency=8, step_seconds=0.01, request_seconds=0.01)
    stays = simulate_rounds(UNEQUAL, machine, model=model, **SHAPE, levels=False)
    moves = simulate_rounds(UNEQUAL, machine, model=model, **SHAPE, levels=True)
    assert stays.turns == moves.turns
    assert (stays.moved, moves.moved > 0) == (0, True)
    assert moves.seconds < stays.seconds


def test_where_all_requests_are_sampled_at_the_same_speed_it_does_not_matter_who_does(model):
    machine = Machine(concurrency=8, step_seconds=0.01, request_seconds=0.0)
    seconds = {
        levels: simulate_rounds(UNEQUAL, machine, model=model, **SHAPE, levels=levels).seconds
        for levels in (False, True)
    }
    assert seconds[True] == pytest.approx(seconds[False])
