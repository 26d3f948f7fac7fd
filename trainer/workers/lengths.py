"""`LengthMemory`: predicts the length of a task's episodes from earlier ones."""

from __future__ import annotations

from agentloop.types.requests import RolloutRequest

WEIGHT = 0.5
"""Weight of the newest group in the moving average of a task."""


class LengthMemory:
    """Expected length of a group's longest episode, in tokens. An unknown task is expected to be average."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], float] = {}
        self._sum = 0.0

    def learn(self, request: RolloutRequest, longest: int) -> None:
        """Record the number of tokens of the longest trajectory of a finished group."""
        key = (request.split, request.row)
        before = self._known.get(key)
        value = float(longest) if before is None else before + WEIGHT * (longest - before)
        self._known[key] = value
        self._sum += value - (before or 0.0)

    def expect(self, request: RolloutRequest) -> float:
        if not self._known:
            return 0.0
        return self._known.get((request.split, request.row), self._sum / len(self._known))
