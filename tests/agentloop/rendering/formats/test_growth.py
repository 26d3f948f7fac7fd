"""The time to read a turn grows with its length, also for turns that only a broken policy writes."""

from __future__ import annotations

import re
import time
from inspect import getsource
from sys import modules

import pytest

from agentloop.rendering.formats import FORMATS
from agentloop.rendering.formats.base import MOST_CALLS
from agentloop.rendering.parsing import TurnParser
from tests.agentloop.rendering.formats.test_formats import TOOLS

GROWTH = 10.0
"""Most times longer for four times the text: 16 if reading is quadratic, 4 if it is linear."""
SHORTEST = 0.03
"""Seconds below which nothing is compared."""
LENGTHS = (40_000, 160_000)
COMMON = [
    "<think>",
    "</think>",
    " ",
    "\n",
    '"',
    "'",
    "\\'",
    "{",
    "}",
    "[",
    "]",
    "(",
    ",",
    ":",
    "=",
    "a",
    "1",
    "a b ",
    "\\",
]


def marks(call_format):
    """Return the markers of a format: the tags in its own source, its signs, and characters of all formats."""
    function = call_format.read or call_format.read_turn
    owner = getattr(function, "__self__", None)
    told = (
        " ".join(str(value) for value in vars(owner).values())
        if owner is not None
        else str(getattr(function, "keywords", ""))
    )
    module = getattr(function, "func", function).__module__
    found = re.findall(
        r"</?[|｜\w]*[^<>\s\\]{1,40}>|\[[A-Z_]{3,}\]", told + " ".join(call_format.signs) + getsource(modules[module])
    )
    return [*dict.fromkeys(mark for mark in (*call_format.signs, *found) if "(?" not in mark)][:40]


def seconds(parser, text):
    begun = time.thread_time()
    parser.parse(text, tools=TOOLS)
    return time.thread_time() - begun


def grows(parser, unit, head=""):
    """Return how many times longer four times the text takes, 0 if both are short. What looks slow is measured again,
    because other programs may have slowed one measurement."""
    for _ in range(3):
        if (times := growth(parser, unit, head)) <= GROWTH:
            break
    return times


def growth(parser, unit, head):
    short, long = (head + unit * (length // len(unit)) for length in LENGTHS)
    after = min(seconds(parser, long) for _ in range(2))
    if after < SHORTEST:
        return 0.0
    return after / max(min(seconds(parser, short) for _ in range(3)), 0.002)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_reading_time_grows_linearly(name):
    """Each marker repeated; and each marker before a long run of each other one."""
    call_format = FORMATS.get(name)
    parser = TurnParser(call_format)
    own = marks(call_format)
    assert own
    cases = [("", mark) for mark in (*own, *COMMON)]
    cases += [(first, second) for first in own for second in COMMON]
    slow = [(head, unit, times) for head, unit in cases if (times := grows(parser, unit, head)) > GROWTH]
    assert not slow


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_pairs_of_markers_grow_linearly(name):
    call_format = FORMATS.get(name)
    parser = TurnParser(call_format)
    own = marks(call_format)[:12]
    cases = [first + middle + second for first in own for second in own for middle in ("", "f\n")]
    slow = [(unit, times) for unit in cases if (times := grows(parser, unit)) > GROWTH]
    assert not slow


@pytest.mark.parametrize(
    ("name", "head", "unit"),
    [
        ("hermes", "", "<tool_call>"),
        ("deepseek_v3_1", "", "<｜tool▁call▁begin｜>"),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]", " "),
        ("lfm2", "<|tool_call_start|>'", "\\'"),
        ("gemma4", "", "<|tool_call>call:"),
    ],
)
def test_texts_that_were_slow(name, head, unit):
    assert grows(TurnParser(FORMATS.get(name)), unit, head) <= GROWTH


def test_calls_after_the_limit_are_one_malformed_call():
    parsed = TurnParser(FORMATS.get("hermes")).parse("<tool_call>" * 20_000)
    assert len(parsed.calls) == MOST_CALLS + 1
    assert parsed.calls[-1].error == f"The turn has more than {MOST_CALLS} calls; the others are ignored."
