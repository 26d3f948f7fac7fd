"""Requests from outside to the workers of a run: another number of them, a node to leave."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from agentloop.trainer.cluster.session import require_ray

FILE = "workers"
"""In the folder of the run."""


def draining_nodes() -> Collection[str]:
    """Return ids of the nodes that Ray is to give back (`ray drain-node`, an autoscaler, a spot instance's notice)."""
    ray = require_ray()
    # There is no public name for it; Ray's own libraries use this one.
    nodes: Collection[str] = ray._private.state.state.get_draining_nodes()
    return nodes


class WorkerCount:
    """The requested number of workers, in a file. A number from before the start of the run does not count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()

    def take(self) -> int | None:
        """Return the number once each time that it was written, else None."""
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
