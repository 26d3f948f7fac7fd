"""Limit how often something is restarted before it is given up."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping

HOUR = 3600.0


class RestartBudget:
    """Allows `limits[kind]` restarts (by default `default`) for each kind of failure within `seconds`.

    A run of weeks thus survives rare failures, while a crash at every start ends it.
    """

    def __init__(
        self,
        default: int = 3,
        limits: Mapping[str, int] | None = None,
        *,
        seconds: float = HOUR,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._default = default
        self._limits = dict(limits or {})
        self._seconds = seconds
        self._clock = clock
        self._recent: dict[str, deque[float]] = {}
        self.counts: Counter[str] = Counter()
        """All failures so far, by kind."""

    def spend(self, kind: str) -> bool:
        """Count a failure; return whether a restart is left for it."""
        self.counts[kind] += 1
        now = self._clock()
        recent = self._recent.setdefault(kind, deque())
        recent.append(now)
        while recent[0] < now - self._seconds:
            recent.popleft()
        return len(recent) <= self._limits.get(kind, self._default)

    def __str__(self) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items())) or "none"
