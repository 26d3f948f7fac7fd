"""Draw bugs, and find those that some tests detect and most do not."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentloop.envs.harbor.making.swe.modifiers.registry import MODIFIERS
from agentloop.envs.harbor.making.swe.modifiers.source import Source
from agentloop.envs.harbor.making.swe.suite import Outcome, Suite


@dataclass(slots=True, frozen=True)
class Candidate:
    """A change that may be a bug."""

    modifier: str
    path: str
    sound: bytes
    changed: bytes


@dataclass(slots=True, frozen=True)
class Bug:
    """A change that tests detect."""

    candidate: Candidate
    fail_to_pass: dict[str, str]
    """Tests that fail because of it, each with its message, empty if runs give different ones."""
    pass_to_pass: list[str]
    """Tests that pass despite it."""


def candidates(
    folder: Path, paths: Sequence[str], modifiers: Sequence[str], seed: str, copies: set[bytes]
) -> Iterator[Candidate]:
    """Yield changes of the files `paths` below `folder` in a random order, none twice; all kinds are equally likely.

    Files with another copy, in the image or in the folder, are not changed.
    """
    sources = dict(_sources(folder, paths, copies))
    rng = random.Random(seed)
    left = {}
    for name in modifiers:
        edits = [(path, edit) for path, source in sources.items() for edit in MODIFIERS[name](source)]
        rng.shuffle(edits)
        left[name] = edits
    seen = set()
    while left := {name: edits for name, edits in left.items() if edits}:
        name = rng.choice(sorted(left))
        path, edit = left[name].pop()
        data = sources[path].changed(edit)
        if data is not None and data.endswith(b"\n") and (path, data) not in seen:
            seen.add((path, data))
            yield Candidate(name, path, sources[path].data, data)


def _sources(folder: Path, paths: Sequence[str], copies: set[bytes]) -> Iterator[tuple[str, Source]]:
    in_folder = [path.read_bytes() for path in folder.rglob("*.py") if path.is_file()]
    for path in paths:
        data = (folder / path).read_bytes()
        is_single = in_folder.count(data) == 1 and hashlib.sha256(data).digest() not in copies
        if is_single and data.endswith(b"\n") and (source := Source.parse(data)) is not None:
            yield path, source


async def bug_of(
    candidate: Candidate, suite: Suite, stable: frozenset[str], *, seconds: float, max_failing: float
) -> Bug | None:
    """Run the `stable` tests twice with a change; None unless some, at most a share of `max_failing`, fail twice."""
    runs: list[Outcome] = []
    for hash_seed in (0, 1):
        plan = suite.plan(seconds=seconds, chosen=sorted(stable), hash_seed=hash_seed)
        outcome = await suite.run(plan, {candidate.path: candidate.changed})
        if outcome.timed_out or outcome.broken:
            return None  # a hang or an import error teaches little
        if not 0 < len(stable - outcome.passed) <= max_failing * len(stable):
            return None
        runs.append(outcome)
    first, second = runs
    failing = sorted(stable - first.passed - second.passed)
    if not failing:
        return None
    messages = {name: first.message(name) for name in failing}
    kept = {name: text if text == second.message(name) else "" for name, text in messages.items()}
    return Bug(candidate, kept, sorted(first.passed & second.passed))
