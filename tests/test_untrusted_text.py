"""Every reader of untrusted text takes time in proportion to its length, whatever the text is.

A regular expression holds the GIL: one that backtracks stops all episodes of its process, and no timeout ends it.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from agentloop.envs.gymnasium.observations import uncoloured
from agentloop.envs.gymnasium.text_actions import action_in
from agentloop.envs.rewards import answers, judge, texts
from agentloop.envs.rewards.code.cases import same_output
from agentloop.envs.rewards.formats import follows
from agentloop.gateway.turns.deltas import certain
from agentloop.sandboxes.client.wire import ProcessBody
from agentloop.sandboxes.worlds import runs
from agentloop.tools.code_interpreter import strip_fence
from agentloop.tools.schema import ArgumentError
from agentloop.tools.serving.routes import front
from agentloop.tools.sql.comparators import sorts
from agentloop.tools.web import page_text
from agentloop.tools.web.fetcher import FetchError, checked_url, is_text

pytestmark = pytest.mark.slow

CHARS = (1_000, 32_000)
"""Lengths of the texts: a cubic pattern is found at the first one, so that this test ends."""
NANOSECONDS_PER_CHAR = 1_000
"""Several times what the slowest reader needs, and a fraction of what a quadratic pattern needs at the end."""
GROWTH = 8
"""A linear reader of four times as much text takes 4 times as long, a quadratic one 16 times."""


def rewarded(reward: Callable, answer: str) -> Callable[[str], object]:
    return lambda text: reward(SimpleNamespace(final_text=text), {"answer": answer})


def acted(space: spaces.Space, names: tuple[str, ...] = ()) -> Callable[[str], object]:
    return lambda text: action_in(text, space, names, None)


READERS: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "page, its header": (lambda text: page_text.decoded(b"", text), ("charset", "=", '"', "text/html;")),
    "page, its declaration": (lambda text: page_text.decoded(text.encode(), ""), ("<meta charset", "=", '"')),
    "page, its type": (is_text, ("application/", "+json", "text/", "+")),
    "url": (checked_url, ("http://", "h.x/", ".", "%", "?", "@", "[", ":", "ü")),
    "sql": (sorts, ("'", '"', "--", "/*", "*/", "(", ")", "order", "by")),
    "fenced code": (strip_fence, ("```", "python", "`", "\t")),
    "request id": (lambda text: front.request_id({b"x-request-id": text.encode()}), (".", "_")),
    "reward contains": (rewarded(answers.contains, "a b"), ("a b", "b")),
    "reward last_number": (rewarded(answers.last_number, "1"), (",", ".", "e", "+", "1.", ".1")),
    "reward exact_match": (rewarded(answers.exact_match, "a b"), ("the", ".", "an ")),
    "reward search_r1": (rewarded(answers.search_r1, "a b"), ("<answer>", "</answer>", "<")),
    "reward strict_box": (rewarded(answers.strict_box, "1"), (r"\boxed{", "{", "}")),
    "boxed": (texts.last_boxed, (r"\boxed{", "{", "}")),
    "fence": (texts.last_fence, ("```", "```sql\n", "`")),
    "format": (lambda text: follows(text, ["think", "answer"], alone=True), ("<think>", "</think>", "<answer>")),
    "verdict": (judge.read_verdict, ("verdict", ":", "correct", "*")),
    "judged answer": (judge.without_tags, ("<", "</", "student", ">")),
    "output of code": (lambda text: same_output(text, "1"), ("\t", "\r")),
    "terminal colours": (uncoloured, ("\x1b[", "\x1b[31m", "m", ";", "\x1b[0m")),
    "action, integer": (acted(spaces.Discrete(3)), (".", "1.", "_")),
    "action, number": (acted(spaces.Box(0, 1, ())), (".", "1.", "e", "+")),
    "action, name": (acted(spaces.Discrete(2), ("up", "up left")), ("up", "up left", "u")),
    "action, JSON": (acted(spaces.Box(0, 1, (2,), np.float32)), ("[", "{", "]", "}", '"', '{"a":', ",", "[1,")),
    "streamed text": (lambda text: certain(text, ("END",)), ("<", "[", "`", "END", "\ufffd")),
    "errors of a program": (
        lambda text: ProcessBody(status="Finished", return_code=1, stderr=text).values(),
        ("MemoryError", "Memory", "."),
    ),
    "errors of a world": (runs.out_of_memory, ("MemoryError", "Memory", ".")),
}
COMMON = (" ", "\n", "a", "1", "-")


def hostile(pieces: tuple[str, ...]) -> Iterator[Callable[[int], str]]:
    """Yield functions that make texts of a length: a piece or a pair of them repeated, after one and before another."""
    alphabet = (*pieces, *COMMON)
    edges = ("", *alphabet)
    for before, unit, after in itertools.product(edges, alphabet, edges):
        yield lambda chars, b=before, u=unit, a=after: b + u * (chars // len(u)) + a
    for first, second in itertools.permutations(alphabet, 2):
        yield lambda chars, u=first + second: u * (chars // len(u))


def seconds(read: Callable[[str], object], text: str) -> float:
    start = time.thread_time()
    with suppress(ValueError, ArgumentError, FetchError):  # a reader may refuse a text
        read(text)
    return time.thread_time() - start


@pytest.mark.parametrize("name", READERS)
def test_time_is_in_proportion_to_the_text(name):
    read, pieces = READERS[name]
    for text, chars in itertools.product(hostile(pieces), CHARS):
        enough = 1e-2 + chars * NANOSECONDS_PER_CHAR * 1e-9
        large = seconds(read, text(chars))
        if large >= enough:  # a busy machine may be slow once
            large = min(seconds(read, text(chars)) for _ in range(3))
        if large < enough:
            continue
        small = min(seconds(read, text(chars // 4)) for _ in range(3))
        assert large < GROWTH * small, f"{text(40)!r}: {chars:,} characters take {large:.3f} s, a quarter {small:.3f} s"
