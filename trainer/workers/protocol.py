"""What the run loop asks of its rollout workers, whether they are in this process or spread over a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from agentloop.types.requests import RolloutRequest

if TYPE_CHECKING:
    import torch

    from agentloop.trainer.cluster.learner_host import Seat
    from agentloop.types.requests import Group
    from agentloop.types.trajectory import Trajectory


class Workers(Protocol):
    """All rollout workers of a run. Its weights are updated as an engine's are: `Learner.publish(workers, version)`."""

    @property
    def policy_version(self) -> int:
        """Of the weights that the next token is sampled with."""
        ...

    @property
    def learner_seats(self) -> tuple[Seat, ...]:
        """GPUs by node that they leave to the learner, once started; empty where they keep none for it."""
        ...

    async def start(self) -> None:
        """Load and warm up. Raises `UserError` where the model or the hardware cannot be used."""

    def room(self) -> int:
        """Episodes that would begin at once if they were ordered now."""
        ...

    async def play(self, order: RolloutRequest, on_trajectory: Callable[[Trajectory], None] | None = None) -> Group:
        """Play a group; `on_trajectory` sees each trajectory as it ends.

        Cancelling the coroutine aborts its episodes. What goes wrong in an episode is in its trajectory. Raises
        `UserError` where no episode could ever work.
        """
        ...

    async def pause(self) -> None:
        """Stop sampling, keep the requests and their caches; tools go on."""

    async def resume(self) -> None: ...

    async def sleep(self) -> None:
        """Give back the memory of GPUs until `wake`; see `Engine.sleep`. A worker that dies meanwhile, or is lost, is
        started anew when it is to wake."""

    async def wake(self) -> None:
        """With the weights of before, or those that came meanwhile."""

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take new weights under Hugging Face names. Requests in flight stay in flight; their later tokens carry
        `version`."""

    def metrics(self) -> dict[str, float]:
        """Of the workers themselves, under `workers/`: how many there are, what was lost and started anew."""
        ...

    async def close(self) -> None:
        """End what still runs. May be called twice."""
