"""What a level does not claim is said to those who choose one."""

import importlib.util
from pathlib import Path

import pytest

from agentloop.sandboxes.levels.registry import LEVELS

pytestmark = pytest.mark.slow

_HERE = Path(__file__).parent


def test_page_lists_what_each_level_does_not_promise():
    spec = importlib.util.spec_from_file_location("attacks_conftest", _HERE / "conftest.py")
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    page = " ".join((_HERE.parents[2] / "docs" / "sandboxes.md").read_text().split())
    assert set(conftest.LEVELS) == set(LEVELS) - {"none"}
    for level in conftest.LEVELS:
        for claim, reason in conftest.NOT_CLAIMED[level].items():
            if claim != "packages":  # of the tests' machine, not of the level
                assert reason in page, (level, claim)


def test_page_quotes_the_table_of_levels():
    page = " ".join((_HERE.parents[2] / "docs" / "sandboxes.md").read_text().split())
    for name in LEVELS:
        assert LEVELS.get(name).needs in page, name
