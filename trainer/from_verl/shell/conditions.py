"""Conditions: `[[ ... ]]`, and `[ ... ]` or `test`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise

from agentloop.trainer.from_verl.shell.arithmetic import evaluate
from agentloop.trainer.from_verl.shell.expansion import pattern_from, text_of
from agentloop.trainer.from_verl.shell.state import Shell
from agentloop.trainer.from_verl.shell.syntax import Test
from agentloop.trainer.from_verl.shell.unknown import OUTPUT, Unreadable, plain

_FILES = {
    "-e": os.path.exists, "-a": os.path.exists, "-f": os.path.isfile, "-d": os.path.isdir, "-L": os.path.islink,
    "-h": os.path.islink, "-r": os.path.exists, "-w": os.path.exists, "-x": os.path.exists,
}  # fmt: skip
"""Questions about files, the only ones that a script may ask."""
_NUMBERS = ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")


def holds(test: Test, shell: Shell) -> bool:
    """Return whether `[[ ... ]]` is true."""
    if test.operator == "&&":
        return all(holds(node, shell) for node in test.nodes)
    if test.operator == "||":
        return any(holds(node, shell) for node in test.nodes)
    if test.operator == "!":
        return not holds(test.nodes[0], shell)
    first = _known(text_of(test.words[0], shell), shell)
    if len(test.words) == 1:
        return _unary(test.operator, first, shell)
    if test.operator in ("==", "=", "!="):
        pattern = pattern_from(test.words[1], shell)
        shell.record.spend(len(first) * (1 + len(pattern.parts)))
        return pattern.matches(first) != (test.operator == "!=")
    second = _known(text_of(test.words[1], shell), shell)
    if test.operator in _NUMBERS:
        return _compared(test.operator, *(int(plain(evaluate(each, shell))) for each in (first, second)))
    return _binary(test.operator, first, second)


def status_of(words: Sequence[str], shell: Shell) -> int:
    """Return the status of `[ words ]`: 0 if it is true, 1 if not, 2 for numbers that are none."""
    try:
        return int(not _any(list(words), shell))
    except ValueError:
        return 2


def _any(words: list[str], shell: Shell) -> bool:
    if len(words) > 4 or (len(words) == 4 and words[0] != "!"):
        for operator, joined in (("-o", any), ("-a", all)):
            places = [place for place, word in enumerate(words) if word == operator and 0 < place < len(words) - 1]
            if places:
                edges = [-1, *places, len(words)]
                parts = [words[left + 1 : right] for left, right in pairwise(edges)]
                return joined(_any(part, shell) for part in parts)
    if len(words) > 1 and words[0] == "!":
        return not _any(words[1:], shell)
    texts = [_known(word, shell) for word in words]
    if len(texts) == 0:
        return False
    if len(texts) == 1:
        return bool(texts[0])
    if len(texts) == 2:
        return _unary(texts[0], texts[1], shell)
    if len(texts) == 3:
        if texts[1] in _NUMBERS:
            return _compared(texts[1], int(texts[0]), int(texts[2]))
        return _binary(texts[1], texts[0], texts[2])
    raise Unreadable(f"the condition [ {' '.join(words)[:60]} ] is not read")


def _known(value: str, shell: Shell) -> str:
    """Return a value without marks, and note if the output of a program would decide."""
    for description in shell.record.unknowns.described(value):
        if description.startswith(OUTPUT):
            shell.record.note(f"A condition of the script depends on {description}; it counts as empty.")
    return plain(value)


def _unary(operator: str, value: str, shell: Shell) -> bool:
    if operator in ("-n", "-z"):
        return bool(value) == (operator == "-n")
    if operator == "-v":
        return re.sub(r"\[.*", "", value) in shell.variables
    if operator == "-s":
        return os.path.isfile(shell.path(value)) and os.path.getsize(shell.path(value)) > 0
    if operator in _FILES:
        return bool(value) and _FILES[operator](shell.path(value))
    if operator in ("-t", "-p", "-S", "-b", "-c", "-o"):
        return False
    raise Unreadable(f"the condition {operator} is not read")


def _binary(operator: str, first: str, second: str) -> bool:
    if operator in ("=", "=="):
        return first == second
    if operator == "!=":
        return first != second
    if operator in ("<", ">"):
        return first < second if operator == "<" else first > second
    raise Unreadable(f"the condition {operator} is not read")


def _compared(operator: str, first: int, second: int) -> bool:
    return {
        "-eq": first == second, "-ne": first != second, "-lt": first < second, "-le": first <= second,
        "-gt": first > second, "-ge": first >= second,
    }[operator]  # fmt: skip
