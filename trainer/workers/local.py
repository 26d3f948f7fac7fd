"""`LocalWorkers`: one engine and its agent loops in this process and event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from agentloop.episodes.setup import RolloutSetup, started
from agentloop.process.threads import quick_switches
from agentloop.trainer.workers.protocol import Workers
from agentloop.trainer.workers.requests import user_error
from agentloop.types.requests import RolloutRequest

if TYPE_CHECKING:
    from agentloop.engines.base import Engine
    from agentloop.types.requests import Group
    from agentloop.types.trajectory import Trajectory
    from agentloop.weights.handle import WeightHandle


class LocalWorkers(Workers):
    """`Workers` around one engine, which is not started yet."""

    def __init__(self, episodes: RolloutSetup, engine: Engine) -> None:
        self.episodes = episodes
        self.engine = engine
        self._worker = episodes.worker(engine)
        self._running = AsyncExitStack()

    @property
    def policy_version(self) -> int:  # type: ignore[override]
        return self.engine.policy_version

    async def start(self) -> None:
        """Start tools, reward and engine."""
        self._running.enter_context(quick_switches())
        await self._running.enter_async_context(started(self.engine, self.episodes))

    def room(self) -> int:
        return self._worker.room

    async def play(self, request: RolloutRequest, on_trajectory: Callable[[Trajectory], None] | None = None) -> Group:
        try:
            return await self._worker.play(request, on_trajectory)
        except ExceptionGroup as errors:
            raise user_error(errors) from errors

    async def pause(self) -> None:
        await self.engine.pause()

    async def resume(self) -> None:
        await self.engine.resume()

    async def sleep(self, *, keep_weights: bool = True) -> None:
        await self.engine.sleep(keep_weights=keep_weights)

    async def wake(self) -> None:
        await self.engine.wake()

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        await self.engine.update_weights(weights, version)

    def metrics(self) -> dict[str, float]:
        """Return the number of engine restarts by kind of failure."""
        return {f"workers/engine_{kind}": float(count) for kind, count in self.engine.restart_counts.items()}

    async def close(self) -> None:
        await self._running.aclose()
