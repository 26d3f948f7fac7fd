"""External requests to the workers of a run: a new number of workers, or nodes to leave."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from agentloop.trainer.cluster.session import require_ray

FILE = "workers"
"""Name of the file in the run folder."""


def draining_nodes() -> Collection[str]:
    """Return the ids of nodes that are draining (`ray drain-node`, an autoscaler, a notice for a spot instance)."""
    ray = require_ray()
    # There is no public API for this; Ray's own libraries use this function.
    nodes: Collection[str] = ray._private.state.state.get_draining_nodes()
    return nodes


class WorkerCount:
    """The requested number of workers in a file. A number from before the start of the run is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()

    def take(self) -> int | None:
        """Return the number once each time that it is written; otherwise None."""
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
