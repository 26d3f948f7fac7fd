"""Hints about problems that the metrics alone do not explain, each printed once per run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_MOST_CAUSES = 5


class Hints:
    """Hints of one run, which writes to `folder`."""

    def __init__(self, folder: Path) -> None:
        self._view = f"View its trajectories: agentloop view {shlex.quote(str(folder))}"
        self._causes: set[str] = set()
        self._given: set[str] = set()

    def of_trajectory(self, trajectory: Trajectory) -> Iterator[str]:
        """Yield a hint about the failure of an episode, for the first few causes."""
        cause = trajectory.error
        if cause is not None and cause not in self._causes and len(self._causes) < _MOST_CAUSES:
            self._causes.add(cause)
            yield f"an episode of row {trajectory.task.get('id', '?')} failed: {cause}"

    def of_step(self, step: int, metrics: Mapping[str, float]) -> Iterator[str]:
        """Yield hints about a whole step."""
        rewards_alone = "reward/mean" in metrics and "distillation/reverse_kl" not in metrics
        if rewards_alone and metrics.get("reward/equal_groups") == 1.0 and self._is_new("equal"):
            yield (
                f"step {step}: all episodes of each task had the same reward, so they gave no learning signal. "
                f"{self._view}"
            )
        calls = metrics.get("rollout/calls", 0.0) * metrics.get("rollout/episodes", 0.0)
        refused = metrics.get("failures/model", 0.0)
        if calls and refused > calls / 2 and self._is_new("refused"):
            yield (
                f"step {step}: {refused:.0f} of {calls:.0f} tool calls were invalid: unknown tools, wrong arguments or "
                f"malformed calls. {self._view}"
            )

    def _is_new(self, hint: str) -> bool:
        is_new = hint not in self._given
        self._given.add(hint)
        return is_new
