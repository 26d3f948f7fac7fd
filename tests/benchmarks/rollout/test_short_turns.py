"""Processor time of a turn is that of processes that were found by their names."""

import pytest

from benchmarks.rollout.short_turns import microseconds


def test_processor_time_is_divided_among_turns():
    assert microseconds({"this": 0.5, "cores": 3.0}, "this", 1000) == 500.0


def test_processes_that_are_not_found_are_an_error_and_no_time_of_zero():
    with pytest.raises(RuntimeError, match="No process of the kind 'cores' used processor time"):
        microseconds({"this": 0.5, "cores": 0.0}, "cores", 1000)
