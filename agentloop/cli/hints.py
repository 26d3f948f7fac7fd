"""What a figure alone does not tell whoever starts a run: each thing once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_MOST_CAUSES = 5


class Hints:
    """Of one run."""

    def __init__(self, folder: Path) -> None:
        self._look = f"Look at its trajectories: agentloop view {folder}"
        self._causes: set[str] = set()
        self._said: set[str] = set()

    def of_trajectory(self, trajectory: Trajectory) -> Iterator[str]:
        """Why an episode failed, for the first few causes."""
        cause = trajectory.error
        if cause is not None and cause not in self._causes and len(self._causes) < _MOST_CAUSES:
            self._causes.add(cause)
            yield f"an episode of row {trajectory.task.get('id', '?')} failed: {cause}"

    def of_step(self, step: int, metrics: Mapping[str, float]) -> Iterator[str]:
        """What is wrong with the whole of a step."""
        if "reward/mean" in metrics and metrics.get("reward/equal_groups") == 1.0 and self._is_new("equal"):
            yield (
                f"step {step}: all episodes of each task had the same reward, so that nothing could be learned from "
                f"them. {self._look}"
            )
        calls = metrics.get("rollout/calls", 0.0) * metrics.get("rollout/episodes", 0.0)
        refused = metrics.get("failures/model", 0.0)
        if calls and refused > calls / 2 and self._is_new("refused"):
            yield (
                f"step {step}: {refused:.0f} of {calls:.0f} calls could not be used: no such tool, wrong arguments, or "
                f"malformed. {self._look}"
            )

    def _is_new(self, what: str) -> bool:
        is_new = what not in self._said
        self._said.add(what)
        return is_new
