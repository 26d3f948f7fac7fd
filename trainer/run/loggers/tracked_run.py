"""`RememberedRun`: the id of a run on a tracking server, and the last step that the server has."""

from __future__ import annotations

import json
from pathlib import Path

from agentloop.errors import UserError
from agentloop.process.atomic import write_text


class RememberedRun:
    """A record in the run folder, so that a resumed run continues the same run on the tracking server.

    The server keeps all metrics that it received. A resumed run repeats the steps after the last checkpoint, but does
    not send their metrics again.
    """

    def __init__(self, file: Path) -> None:
        """Read the record, if there is one. Raises `UserError` if it is damaged."""
        self._file = file
        self.id: str | None = None
        self._step = -1
        if file.is_file():
            try:
                known = json.loads(file.read_text())
                self.id, self._step = str(known["id"]), int(known["step"])
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{file} is damaged: {type(error).__name__}: {error}. It names the run on the tracking server. "
                    "Remove it to begin a new one there."
                ) from error

    def begin(self, run_id: str) -> None:
        """Record the id that the server gave the run."""
        if run_id != self.id:
            self.id, self._step = run_id, -1
            self._write()

    def is_new(self, step: int) -> bool:
        """Return whether the server does not have this step yet."""
        return step > self._step

    def mark_sent(self, step: int) -> None:
        """Record that the server has this step."""
        self._step = step
        self._write()

    def _write(self) -> None:
        write_text(self._file, json.dumps({"id": self.id, "step": self._step}))
