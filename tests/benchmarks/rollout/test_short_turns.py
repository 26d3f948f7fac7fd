"""Processor time of a turn is that of processes that were found by their names."""

import pytest

from benchmarks.rollout.short_turns import microseconds, stack_shares


def test_processor_time_is_divided_among_turns():
    assert microseconds({"this": 0.5, "cores": 3.0}, "this", 1000) == 500.0


def test_processes_that_are_not_found_are_an_error_and_no_time_of_zero():
    with pytest.raises(RuntimeError, match="No process of the kind 'cores' used processor time"):
        microseconds({"this": 0.5, "cores": 0.0}, "cores", 1000)


def test_a_function_is_counted_once_for_each_stack(tmp_path):
    (tmp_path / "core1.txt").write_text("run (a.py:1);wait (b.py:2) 600\nrun (a.py:1);run (a.py:7);copy (c.py:3) 200\n")
    (tmp_path / "core2.txt").write_text("sleep (a.py:1) 3\n")
    assert stack_shares(tmp_path) == {"core1": {"run (a.py)": 1.0, "wait (b.py)": 0.75, "copy (c.py)": 0.25}}
