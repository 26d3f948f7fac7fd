"""Interface of the rollout workers of a run, in this process or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from agentloop.engines.base import EngineControl
from agentloop.types.requests import RolloutRequest

if TYPE_CHECKING:
    from agentloop.trainer.cluster.reservation import GpuReservation
    from agentloop.types.requests import Group
    from agentloop.types.trajectory import Trajectory


class Workers(EngineControl, Protocol):
    """All rollout workers of a run, controlled like one engine: `Learner.publish(workers, version)`.

    Tools continue during a pause and during sleep. A worker that dies asleep is restarted when the workers wake.
    """

    policy_version: int
    """Version of the weights that sample the next token."""

    @property
    def reservation(self) -> GpuReservation | None:
        """GPUs that workers leave to the learner; None if they share all GPUs."""
        return None

    async def reserve(self) -> None:
        """Reserve the GPUs of `reservation`, so that the learner can load while the workers start."""
        return

    async def start(self) -> None:
        """Load models and warm up. Raises `UserError` if the model or the hardware is unusable."""

    def room(self) -> int:
        """Return the number of further episodes that could start now."""
        ...

    async def play(self, request: RolloutRequest, on_trajectory: Callable[[Trajectory], None] | None = None) -> Group:
        """Play a group; `on_trajectory` gets each trajectory as it ends.

        Cancelling the coroutine aborts the episodes. An error in an episode is in its trajectory. Raises `UserError` if
        no episode could ever work.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Return metrics of the workers with the prefix `workers/`: their number, losses and restarts."""
        ...
