"""`KeptWarnings`: the warnings of an actor, which the run's process shows."""

from __future__ import annotations

import logging
from collections import deque

_MOST = 100
"""Largest number of warnings kept between two reports."""


class KeptWarnings(logging.StreamHandler):
    """Keeps warnings, and writes them to stderr, which Ray keeps in the log of the actor."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self._kept: deque[str] = deque(maxlen=_MOST)

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(self.format(record))
        super().emit(record)

    def take(self) -> list[str]:
        """Return the warnings since the last call."""
        taken = []
        while self._kept:
            taken.append(self._kept.popleft())
        return taken
