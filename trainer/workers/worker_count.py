"""External requests to the workers of a run: a new number of workers, or nodes to leave."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from agentloop.process.atomic import write_text
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
    """The requested number of workers in a file.

    A resumed run takes the number from before its start, unless its config has another number than at that time.
    """

    def __init__(self, path: Path, configured: int) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        if path.is_file() and self._words()[-1:] != [str(configured)]:
            self.forget()

    @staticmethod
    def request(path: Path, count: int, configured: int) -> None:
        """Write a number of workers for a run whose config has the number `configured`."""
        write_text(path, f"{count} instead of {configured}\n")

    def take(self) -> int | None:
        """Return the number once each time that it is written; otherwise None."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return None
        self._seen = stamp
        count = self._words()[0]
        return int(count) if count.isdecimal() else None

    def forget(self) -> None:
        """Remove the number, so that a resumed run does not take it."""
        self._path.unlink(missing_ok=True)

    def _words(self) -> list[str]:
        return self._path.read_text(encoding="utf-8").split() or [""]

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_ino
