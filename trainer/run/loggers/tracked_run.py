"""`RememberedRun`: which run of a tracking server a folder has, and how far it was told of."""

from __future__ import annotations

import json
from pathlib import Path

from agentloop.process.atomic import write_text


class RememberedRun:
    """Kept in a file of the run's folder, so that a resume goes on with the same run there.

    Servers keep what they were told: the steps between the last checkpoint and the end of a killed run are played
    again, but not told again.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        known = json.loads(file.read_text()) if file.is_file() else {}
        self.id: str | None = known.get("id")
        self._step: int = known.get("step", -1)

    def begin(self, run_id: str) -> None:
        """The run has this id there."""
        if run_id != self.id:
            self.id, self._step = run_id, -1
            self._write()

    def is_new(self, step: int) -> bool:
        return step > self._step

    def told(self, step: int) -> None:
        self._step = step
        self._write()

    def _write(self) -> None:
        write_text(self._file, json.dumps({"id": self.id, "step": self._step}))
