"""What is asked of the workers of a run from outside, while it goes on: to be more or fewer, to leave a node."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from agentloop.trainer.cluster.session import require_ray

FILE = "workers"
"""In the folder of the run."""


def draining_nodes() -> Collection[str]:
    """Ids of the nodes that Ray was told to give back (`ray drain-node`, an autoscaler, a spot instance's notice)."""
    ray = require_ray()
    # There is no public name for it; Ray's own libraries use this one.
    nodes: Collection[str] = ray._private.state.state.get_draining_nodes()
    return nodes


class WorkerCount:
    """How many workers there are to be: a number in a file. What was in it when the run was started is over, and the
    config says how many there are."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()

    def take(self) -> int | None:
        """The number, once for each time that it was written."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return None
        text = self._path.read_text(encoding="utf-8").strip()
        self._seen = stamp
        return int(text) if text.isdecimal() else None

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_ino
