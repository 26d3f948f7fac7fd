"""`LocalWorkers`: one engine and its agent loops, in this process and on this event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from agentloop.rollout.setup import RolloutSetup, started
from agentloop.trainer.workers.requests import user_error
from agentloop.types.requests import RolloutRequest

if TYPE_CHECKING:
    import torch

    from agentloop.engines.base import Engine
    from agentloop.trainer.cluster.learner_host import Seat
    from agentloop.types.requests import Group
    from agentloop.types.trajectory import Trajectory


class LocalWorkers:
    """`Workers` around one engine, which is not started yet."""

    def __init__(self, episodes: RolloutSetup, engine: Engine) -> None:
        self.episodes = episodes
        self.engine = engine
        self._worker = episodes.worker(engine)
        self._running = AsyncExitStack()

    @property
    def learner_seats(self) -> tuple[Seat, ...]:
        """See `Workers.learner_seats`: a worker in this process is not on GPUs of its own."""
        return ()

    @property
    def policy_version(self) -> int:
        """See `Workers`."""
        return self.engine.policy_version

    async def start(self) -> None:
        """See `Workers.start`: tools, reward and engine."""
        await self._running.enter_async_context(started(self.engine, self.episodes))

    def room(self) -> int:
        """See `Workers.room`."""
        return self._worker.room

    async def play(self, order: RolloutRequest, on_trajectory: Callable[[Trajectory], None] | None = None) -> Group:
        """See `Workers.play`."""
        try:
            (group,) = await self._worker.run_groups([self.episodes.spec(order)], on_trajectory)
        except ExceptionGroup as errors:
            raise user_error(errors) from errors
        return group

    async def pause(self) -> None:
        """See `Workers.pause`."""
        await self.engine.pause()

    async def resume(self) -> None:
        """See `Workers.resume`."""
        await self.engine.resume()

    async def sleep(self) -> None:
        """See `Workers.sleep`."""
        await self.engine.sleep()

    async def wake(self) -> None:
        """See `Workers.wake`."""
        await self.engine.wake()

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """See `Workers.update_weights`."""
        await self.engine.update_weights(weights, version)

    def metrics(self) -> dict[str, float]:
        """See `Workers.metrics`: how often the engine was started anew, where it was."""
        budget = getattr(self.engine, "budget", None)
        return {f"workers/engine_{kind}": float(count) for kind, count in budget.counts.items()} if budget else {}

    async def close(self) -> None:
        """See `Workers.close`."""
        await self._running.aclose()
