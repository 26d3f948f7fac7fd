"""The table in docs/guides/sandboxes.md promises what the attacks of this folder show, for each level and row."""

import fnmatch
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from agentloop.sandboxes.levels.registry import LEVELS

pytestmark = pytest.mark.slow

_HERE = Path(__file__).parent
_PAGE = (_HERE.parents[2] / "docs" / "guides" / "sandboxes.md").read_text()
_WITHOUT_LEVELS = {"test_claims", "test_clean_slots", "test_not_promised"}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"claims_{name}", _HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONFTEST = load("conftest")


def table() -> dict[str, dict[str, bool]]:
    """Return the rows of the page: whether each level promises them."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in _PAGE.splitlines() if line[:1] == "|"]
    start = rows.index(["attack", *CONFTEST.LEVELS])
    found = {}
    for row in rows[start + 2 :]:
        if len(row) != 1 + len(CONFTEST.LEVELS) or not set(row[1:]) <= {"✓", "–"}:
            break
        found[row[0]] = dict(zip(CONFTEST.LEVELS, (cell == "✓" for cell in row[1:]), strict=True))
    return found


@cache
def attacks() -> dict[str, set[str]]:
    """Return all attacks that run against levels, and their claims."""
    found = {}
    for path in sorted(_HERE.glob("test_*.py")):
        if path.stem not in _WITHOUT_LEVELS:
            for name, function in inspect.getmembers(load(path.stem), inspect.isfunction):
                if name.startswith("test_"):
                    marks = getattr(function, "pytestmark", [])
                    found[f"{path.stem}::{name}"] = {mark.args[0] for mark in marks if mark.name == "claim"}
    return found


def behind(row: str) -> set[str]:
    """Return the tests of a row."""
    patterns = [pattern if "::" in pattern else f"{pattern}::*" for pattern in CONFTEST.ROWS[row]]
    matched = {pattern: set(fnmatch.filter(attacks(), pattern)) for pattern in patterns}
    assert all(matched.values()), (row, [pattern for pattern, found in matched.items() if not found])
    return set().union(*matched.values())


def test_page_and_tests_have_the_same_rows():
    assert list(table()) == list(CONFTEST.ROWS)
    assert set(CONFTEST.LEVELS) == set(LEVELS) - {"none"}


def test_every_attack_stands_behind_a_row():
    assert set().union(*map(behind, CONFTEST.ROWS)) == set(attacks())


@pytest.mark.parametrize("name", CONFTEST.LEVELS)
@pytest.mark.parametrize("row", CONFTEST.ROWS)
def test_cell_is_promised_if_its_attacks_run(row, name):
    if not CONFTEST.ROWS[row]:
        assert not table()[row][name]
        return
    missing = set(CONFTEST.NOT_CLAIMED[name]) - CONFTEST.NOT_IN_THE_TABLE
    held = {test for test in behind(row) if not attacks()[test] & missing}
    assert table()[row][name] == (held == behind(row)), held ^ behind(row)
    if table()[row][name]:
        everything = set(CONFTEST.NOT_CLAIMED[name])
        assert [test for test in behind(row) if not attacks()[test] & everything], "no test runs at this level"


@pytest.mark.parametrize("name", CONFTEST.LEVELS)
def test_page_says_why_a_claim_is_not_made(name):
    text = " ".join(_PAGE.split())
    for claim, reason in CONFTEST.NOT_CLAIMED[name].items():
        if claim != "packages":  # of the tests' machine, not of the level
            assert reason in text, claim


def test_every_claim_that_is_not_made_is_shown_not_to_hold():
    shown = load("test_not_promised").SHOWN
    expected = {
        (level, claim)
        for level in CONFTEST.LEVELS
        for claim in CONFTEST.NOT_CLAIMED[level]
        if claim not in ("packages", "user namespace")  # the first is of the machine, the second has its own test
    }
    assert set(shown) == expected


def test_page_quotes_the_table_of_levels():
    text = " ".join(_PAGE.split())
    for name in LEVELS:
        assert LEVELS.get(name).needs in text, name


def test_page_names_the_levels_in_order():
    assert re.search(r"\| attack \| " + r" \| ".join(CONFTEST.LEVELS) + r" \|", _PAGE)
