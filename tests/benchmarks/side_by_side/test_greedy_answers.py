"""Answers of programs that write the end of a turn differently are compared alike."""

import json
import sys

import pytest

from agentloop import engines
from benchmarks.side_by_side import greedy_answers
from benchmarks.side_by_side.greedy_answers import ended, margins


def test_all_answers_end_with_the_token_that_ends_a_turn():
    whole = list(range(3, 99))
    assert ended([[5, 6], [5, 6, 2], [5, 6, 2, 9, 9], whole], 2) == [[5, 6, 2]] * 3 + [whole]
    assert ended([[*whole[:95], 2], whole[:95]], 2) == [[*whole[:95], 2]] * 2


def test_the_margin_of_a_turn_that_ends_earlier_is_a_number(sums_model):
    short, long = ended([[5], [5, 6, 7]], 2)
    (margin,) = margins(str(sums_model), [[3, 4]], [short], [long])
    assert 0 < margin < 20


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}])
def test_the_engine_computes_in_the_dtype_of_all_programs(monkeypatch, tmp_path, sums_model, options):
    def create(name, **given):
        assert (name, given) == ("hf", {"model": str(sums_model), "dtype": "float16", **options})
        raise InterruptedError

    monkeypatch.setattr(engines, "create", create)
    monkeypatch.setattr(greedy_answers, "prompts_of", lambda *_: ([[3, 4]], 2))
    command = ["greedy_answers", str(sums_model), "tasks", "--dtype", "float16", "--engine", "hf"]
    monkeypatch.setattr(sys, "argv", [*command, "--options", json.dumps(options)])
    with pytest.raises(InterruptedError):
        greedy_answers.main()
