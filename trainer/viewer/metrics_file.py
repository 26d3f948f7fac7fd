"""`MetricsFile`: reads a growing `metrics.jsonl`."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path


class MetricsFile:
    """The complete lines of a metrics file. Each call reads only new lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[dict[str, float | None]] = []
        self._read_bytes = 0
        self._generation = 0
        self._lock = threading.Lock()

    def read(self) -> tuple[int, list[dict[str, float | None]]]:
        """Return the generation of the file, and all its complete lines; NaN and infinity become None.

        Lines that cannot be read are left out, so that a damaged run does not hide the others.
        A run that resumes replaces the file by a shorter one, which changes the generation.
        """
        with self._lock:
            if self._path.is_file():
                self._read_on()
            return self._generation, list(self._lines)

    def _read_on(self) -> None:
        with self._path.open("rb") as file:
            state = os.fstat(file.fileno())
            if state.st_ino != self._generation or state.st_size < self._read_bytes:
                self._generation, self._lines, self._read_bytes = state.st_ino, [], 0
            file.seek(self._read_bytes)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._lines += [found for line in complete.splitlines() if (found := _parsed(line)) is not None]
        self._read_bytes += len(complete)


def _parsed(line: bytes) -> dict[str, float | None] | None:
    try:
        found = json.loads(line, parse_constant=lambda _: None)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) and "step" in found else None
