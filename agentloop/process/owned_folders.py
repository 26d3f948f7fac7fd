"""Temporary folders that name their owner, so that the next process removes those of a killed one."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def make(prefix: str, below: str | os.PathLike[str] | None = None) -> Path:
    """Make a folder of this process, by default among the temporary ones, which the caller has to remove.

    Folders with that prefix whose owners are dead are removed first.
    """
    top = Path(below or tempfile.gettempdir())
    for folder in top.glob(f"{prefix}*-*-*-*"):
        if is_dead(" ".join(folder.name.removeprefix(prefix).split("-")[:3])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{own_label().replace(' ', '-')}-", dir=top))


def own_label() -> str:
    """Return the label of this process: its pid namespace, pid and start time."""
    return f"{os.stat('/proc/self/ns/pid').st_ino} {os.getpid()} {_started('self')}"


def is_dead(owner: str) -> bool:
    """Return whether a process is known to be gone; one of another pid namespace (container, machine) is not."""
    namespace, pid, started = owner.split()
    if namespace != str(os.stat("/proc/self/ns/pid").st_ino):
        return False
    return _started(pid) != started


def _started(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
