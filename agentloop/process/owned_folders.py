"""Temporary folders labelled with their owner, so that later processes can remove those of a killed one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_OWNER = ".owner"
"""File with the label of the process that made a folder with a short name."""
_LONGEST = 107
"""Bytes of the path of a Unix socket (unix(7))."""
_RANDOM = 8
"""Bytes that `tempfile.mkdtemp` adds to a name."""


def make(prefix: str, below: str | os.PathLike[str] | None = None, *, longest_socket: int = 0) -> Path:
    """Create a temporary folder of this process below `below` (default: the system's); the caller must remove it.

    `longest_socket`: the most bytes in the name of a socket inside. If its path were too long for the kernel, the
    folder is made in /tmp. Folders with the same prefix whose owners are dead are removed first.
    """
    top = Path(below or tempfile.gettempdir())
    name = f"{prefix}{own_label().replace(' ', '-')}-"
    if longest_socket and len(os.fsencode(top / name)) + _RANDOM + 1 + longest_socket > _LONGEST:
        top = Path("/tmp")
    for folder in top.glob(f"{prefix}*-*-*-*"):
        if is_dead(" ".join(folder.name.removeprefix(prefix).split("-")[:3])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=name, dir=top))


@contextmanager
def temporary(prefix: str) -> Iterator[Path]:
    """Create a temporary folder with a short name for a block, and remove it afterwards.

    The first block of a process removes the folders with the same prefix whose owners were killed. `.owner` in a folder
    names its owner.
    """
    _remove_abandoned(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        (folder / _OWNER).write_text(own_label())
        yield folder


@cache
def _remove_abandoned(prefix: str) -> None:
    for file in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_OWNER}"):
        try:
            owner = file.read_text()
        except OSError:  # it has just been removed, or belongs to another user
            continue
        if owner and is_dead(owner):
            shutil.rmtree(file.parent, ignore_errors=True)


def own_label() -> str:
    """Return the label of this process: its pid namespace, pid and start time."""
    return f"{os.stat('/proc/self/ns/pid').st_ino} {os.getpid()} {_started('self')}"


def is_dead(owner: str) -> bool:
    """Return whether a process is known to be dead; processes of another pid namespace (container, machine) are not."""
    namespace, pid, started = owner.split()
    if namespace != str(os.stat("/proc/self/ns/pid").st_ino):
        return False
    return _started(pid) != started


def _started(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
