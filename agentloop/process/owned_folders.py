"""Temporary folders that name their owner: what a process that was killed leaves, the next one removes."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def make(prefix: str, below: str | os.PathLike[str] | None = None) -> Path:
    """A new folder of this process, by default among the temporary ones; those with that prefix whose owners are dead
    are removed first. Whoever makes it removes it."""
    top = Path(below or tempfile.gettempdir())
    for folder in top.glob(f"{prefix}*-*-*-*"):
        if is_dead(" ".join(folder.name.removeprefix(prefix).split("-")[:3])):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{own_label().replace(' ', '-')}-", dir=top))


def own_label() -> str:
    """This process: its number and start time, and the namespace in which they mean something."""
    return f"{os.stat('/proc/self/ns/pid').st_ino} {os.getpid()} {_started('self')}"


def is_dead(owner: str) -> bool:
    """Whether the process is known to be gone; that of another pid namespace (a container, a machine) is not."""
    namespace, pid, started = owner.split()
    if namespace != str(os.stat("/proc/self/ns/pid").st_ino):
        return False
    return _started(pid) != started


def _started(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
