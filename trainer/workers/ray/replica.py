"""`Replica`: the Ray actor of one rollout worker with its engine, which plays whole groups."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agentloop.engines.replay import Turn, TurnRecord
from agentloop.trainer.workers.diagnostics import running_code, waiting_tasks
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.ray.kept_warnings import KeptWarnings
from agentloop.weights import broadcast
from agentloop.weights.broadcast import Rendezvous
from agentloop.weights.handle import WeightHandle

if TYPE_CHECKING:
    from agentloop.types.requests import RolloutRequest
    from agentloop.types.trajectory import Trajectory

_BEAT_SECONDS = 0.25


@dataclass(slots=True, frozen=True)
class Parts:
    """Parts of an actor."""

    workers: LocalWorkers
    """Not started."""
    turns: TurnRecord
    """Record of the turns that its engine samples."""


MakeReplica = Callable[[], Parts]
"""Function that the actor calls to create its parts."""


@dataclass(slots=True, frozen=True)
class Started:
    """Facts about an actor whose model is loaded."""

    pid: int
    node: str
    """Ray id of its node."""
    address: str
    """IP address of its node."""
    cache_tokens: int | None
    has_gpu: bool


@dataclass(slots=True, frozen=True, kw_only=True)
class Report:
    """State of an actor."""

    stands_still: float
    """Seconds since the last iteration of its event loop."""
    doing: str
    """Description of running code and waiting tasks; empty unless an explanation was requested."""
    progress: int = 0
    """Number of turns and episodes that have ended so far, which is constant in a hanging actor."""
    resident_tokens: int = 0
    turns: list[Turn] = field(default_factory=list)
    """Turns sampled since the last report."""
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """Warnings logged since the last report, with their tracebacks."""


class Replica:
    """All methods run on the actor's event loop, except `report`, which has its own loop and answers if that hangs."""

    def __init__(self, make: MakeReplica) -> None:
        self._make = make
        self._parts: Parts | None = None
        """None until it is started."""
        self._playing: dict[str, asyncio.Task[Any]] = {}
        self._num_ended = 0
        self._warnings = KeptWarnings()
        logging.getLogger("agentloop").addHandler(self._warnings)
        self._beat = time.monotonic()

    async def start(self) -> Started:
        """Load data, tools, reward and model. Raises `UserError`."""
        import ray

        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._beating = asyncio.create_task(self._beats())
        self._parts = parts = await asyncio.to_thread(self._make)
        await parts.workers.start()
        return Started(
            os.getpid(),
            ray.get_runtime_context().get_node_id(),
            ray.util.get_node_ip_address(),
            parts.workers.engine.cache_tokens,
            has_gpu=bool(ray.get_gpu_ids()),
        )

    async def play(self, request: RolloutRequest, turns: Mapping[str, Sequence[Turn]]) -> AsyncIterator[Trajectory]:
        """Yield the trajectories of a request as they end. The known `turns` are replayed."""
        parts = self._running
        parts.turns.replay(turns)
        ended: asyncio.Queue[Trajectory | None] = asyncio.Queue()
        task = asyncio.create_task(parts.workers.play(request, ended.put_nowait))
        task.add_done_callback(lambda _: ended.put_nowait(None))
        self._playing[request.group_id] = task
        try:
            while (trajectory := await ended.get()) is not None:
                self._num_ended += 1
                yield trajectory
            if not task.cancelled():
                task.result()  # raises the error that ended the group
        finally:
            task.cancel()
            self._playing.pop(request.group_id, None)
            parts.turns.forget(turns)

    async def abort(self, group_id: str) -> None:
        """Abort a group. Unknown ids are ignored."""
        if group_id in self._playing:
            self._playing[group_id].cancel()

    async def change(self, change: Callable[[LocalWorkers], Awaitable[None]]) -> None:
        """Call a method of the workers, such as `LocalWorkers.pause`."""
        await change(self._running.workers)

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        """Take new weights. Raises `CannotMap` or `BroadcastFailed` if another transport is needed."""
        await self._running.workers.update_weights(weights, version)

    async def stop_receiving(self, rendezvous: Rendezvous) -> None:
        """Leave a broadcast that other members have left."""
        broadcast.leave(rendezvous)

    async def report(self, explain: bool = False) -> Report:
        """Return the state. Called in the concurrency group `watch`, which has its own event loop and thread."""
        stands_still = max(time.monotonic() - self._beat - _BEAT_SECONDS, 0.0)
        doing = ""
        if explain:
            doing = f"its event loop runs {running_code(self._thread)}; its tasks wait: {waiting_tasks(self._loop)}"
        report = Report(stands_still=stands_still, doing=doing, warnings=self._warnings.take())
        if (parts := self._parts) is not None:
            restarts = parts.workers.engine.restart_counts
            report = replace(
                report,
                progress=self._num_ended + parts.turns.num_turns,
                resident_tokens=parts.turns.resident_tokens,
                turns=parts.turns.take_new(),
                metrics={f"engine_{kind}": float(count) for kind, count in restarts.items()}
                | {"recalled_turns": float(parts.turns.num_replayed)},
            )
        return report

    async def close(self) -> None:
        """Release tools, reward and engine."""
        for task in list(self._playing.values()):
            task.cancel()
        if self._parts is not None:
            await self._parts.workers.close()

    @property
    def _running(self) -> Parts:
        assert self._parts is not None, "started"
        return self._parts

    async def _beats(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)
