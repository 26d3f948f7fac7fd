"""Kill every process of a world but its first."""

from __future__ import annotations

import _signal
import os


def namespace() -> None:
    """In a pid namespace of its own: one system call, which no process can outrun."""
    assert os.getpid() == 1, "kill(-1) anywhere else would reach the whole machine"
    try:
        os.kill(-1, _signal.SIGKILL)
    except ProcessLookupError:
        return


def descendants() -> None:
    """Without one, as a subreaper: what is left of them is ours, however it was detached. Called again until none is
    left, since new ones may come while it looks."""
    for pid in _below(os.getpid()):
        try:
            os.kill(pid, _signal.SIGKILL)
        except ProcessLookupError:
            continue


def _below(pid: int) -> list[int]:
    found = []
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return []
    for child in children:
        found += [child, *_below(child)]
    return found
