"""Instructions for the agent: how the package fails in its tests, but not where."""

from __future__ import annotations

import re

from agentloop.envs.harbor.making.swe.bugs import Bug
from agentloop.envs.harbor.making.swe.packages.fetching import Package

_TESTS = 4
"""Maximum number of tests that are shown with their messages."""
_LINES = 8
_COLUMNS = 200
_PLACE = re.compile(r'^\s*File ".*", line \d+|^\S+\.py:\d+')
_CHANGING = re.compile(r"0x[0-9a-f]{6,}|/tmp/[\w./-]+")
"""Addresses and names of temporary files: they differ in each run."""


def instruction_of(package: Package, bug: Bug, runner: str) -> str:
    """Return the text of instruction.md."""
    parts = " and ".join(f"`{part}`" for part in package.layout.parts)
    tests = list(bug.fail_to_pass.items())
    shown = [_shown(test, message, bug.candidate.path) for test, message in tests[:_TESTS]]
    more = len(tests) - len(shown)
    if more:
        shown.append(f"So {'does' if more == 1 else 'do'} {more} other test{'' if more == 1 else 's'}.\n")
    lines = [
        f"{package.name} {package.version} in /app has a bug. Tests that are not here say:\n",
        *shown,
        f"Correct the package, {parts}. These tests must pass then, and all others that pass now. Only changes of the "
        f"package count; tests run with `python -m {runner}`. There is no network.\n",
    ]
    return "\n".join(lines)


def _shown(test: str, message: str, path: str) -> str:
    """Return the name of a test with the lines of its message that describe what happened, but not where."""
    lines = [_CHANGING.sub("...", line)[:_COLUMNS] for line in message.splitlines()]
    lines = [line for line in lines if line.strip() and not _PLACE.match(line) and path not in line][:_LINES]
    quoted = "".join(f"    {line}\n" for line in lines)
    return f"{test} fails{':' if quoted else '.'}\n" + (f"\n{quoted}" if quoted else "")
