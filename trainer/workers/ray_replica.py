"""`Replica`: the actor. A rollout worker with its engine in a process of its own, asked for whole groups."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentloop.engines.recalling import RecallingEngine, Turn
from agentloop.engines.shared_weights import SharedWeights
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.ray_weights import weights_of
from agentloop.trainer.workers.waiting import running_code, waiting_tasks

if TYPE_CHECKING:
    from agentloop.trainer.workers.base import GroupOrder
    from agentloop.trajectory import Trajectory

_BEAT_SECONDS = 0.25

MakeReplica = Callable[[], tuple[LocalWorkers, RecallingEngine]]
"""Workers, not started, and the engine that they use. Called in the actor."""


@dataclass(slots=True, frozen=True)
class Started:
    """What an actor is, once its model is loaded."""

    pid: int
    node: str
    cache_tokens: int | None


@dataclass(slots=True, frozen=True)
class Report:
    """How an actor is doing."""

    stands_still: float
    """Seconds since its event loop last turned."""
    progress: int
    """Turns and episodes that ended so far: what hangs has always the same number."""
    resident_tokens: int
    turns: list[Turn]
    """Sampled since the last report."""
    metrics: dict[str, float]
    doing: str
    """In words; empty where nobody asked."""


class Replica:
    """All methods run on the actor's event loop, `report` alone on one of its own: it answers while the other hangs."""

    def __init__(self, make: MakeReplica) -> None:
        self._make = make
        self._workers: LocalWorkers | None = None
        self._playing: dict[str, asyncio.Task[Any]] = {}
        self._num_ended = 0
        self._beat = time.monotonic()

    async def start(self) -> Started:
        """Load everything. Raises `UserError`."""
        import ray

        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._beating = asyncio.create_task(self._beats())
        workers, self._engine = await asyncio.to_thread(self._make)
        self._workers = workers
        await workers.start()
        node = ray.get_runtime_context().get_node_id()
        return Started(os.getpid(), node, getattr(self._engine.engine, "cache_tokens", None))

    async def play(self, order: GroupOrder, turns: Mapping[str, Sequence[Turn]]) -> AsyncIterator[Trajectory]:
        """The trajectories of an order as they end. `turns` are recalled."""
        assert self._workers is not None, "started"
        self._engine.recall(turns)
        ended: asyncio.Queue[Trajectory | None] = asyncio.Queue()
        task = asyncio.create_task(self._workers.play(order, ended.put_nowait))
        task.add_done_callback(lambda _: ended.put_nowait(None))
        self._playing[order.group_id] = task
        try:
            while (trajectory := await ended.get()) is not None:
                self._num_ended += 1
                yield trajectory
            if not task.cancelled():
                task.result()  # raises what ended the group
        finally:
            task.cancel()
            self._playing.pop(order.group_id, None)
            self._engine.forget(turns)

    async def abort(self, group_id: str) -> None:
        """End a group that nobody waits for. Unknown ones are ignored."""
        if group_id in self._playing:
            self._playing[group_id].cancel()

    async def pause(self) -> None:
        await self._running.pause()

    async def resume(self) -> None:
        await self._running.resume()

    async def update_weights(self, weights: SharedWeights | Sequence[Any], version: int) -> None:
        """Weights that another process of this host shares, or references into the object store. Raises `CannotMap`."""
        if not isinstance(weights, SharedWeights):
            weights = weights_of(await asyncio.gather(*weights))
        await self._running.update_weights(weights, version)

    async def report(self, explain: bool = False) -> Report:
        """Called in the concurrency group `watch`, which has an event loop and a thread of its own."""
        stands_still = max(time.monotonic() - self._beat - _BEAT_SECONDS, 0.0)
        engine = self._engine if self._workers is not None else None
        doing = ""
        if explain:
            doing = f"its event loop runs {running_code(self._thread)}; its tasks wait: {waiting_tasks(self._loop)}"
        return Report(
            stands_still=stands_still,
            progress=self._num_ended + (engine.num_turns if engine else 0),
            resident_tokens=engine.resident_tokens if engine else 0,
            turns=engine.take_new() if engine else [],
            metrics=self._metrics(engine) if engine else {},
            doing=doing,
        )

    async def close(self) -> None:
        """Release tools, reward and engine."""
        for task in list(self._playing.values()):
            task.cancel()
        if self._workers is not None:
            await self._workers.close()

    @property
    def _running(self) -> LocalWorkers:
        assert self._workers is not None, "started"
        return self._workers

    def _metrics(self, engine: RecallingEngine) -> dict[str, float]:
        budget = getattr(engine.engine, "budget", None)
        restarts = {f"engine_{kind}": float(count) for kind, count in (budget.counts if budget else {}).items()}
        return restarts | {"recalled_turns": float(engine.num_recalled)}

    async def _beats(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)
