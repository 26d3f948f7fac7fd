"""`Replica`: the actor. A rollout worker with its engine in a process of its own, asked for whole groups."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agentloop.engines.handing_over import HandingOverEngine
from agentloop.engines.replay import RecallingEngine, Turn
from agentloop.trainer.workers.diagnostics import running_code, waiting_tasks
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.ray.helpers import Guests, RayHelper
from agentloop.trainer.workers.ray.remote_weights import weights_of
from agentloop.weights.broadcast import Meeting, Receiver
from agentloop.weights.shelf import Place, SharedWeights

if TYPE_CHECKING:
    from agentloop.engines.base import Engine, Generation, SamplingParams
    from agentloop.types.requests import RolloutRequest
    from agentloop.types.trajectory import Trajectory

_BEAT_SECONDS = 0.25


@dataclass(slots=True, frozen=True)
class Parts:
    """Of a worker: each engine is around the next one."""

    workers: LocalWorkers
    """Not started."""
    recalling: RecallingEngine
    handing_over: HandingOverEngine
    engine: Engine


MakeReplica = Callable[[], Parts]
"""Called in the actor."""


@dataclass(slots=True, frozen=True)
class Started:
    """What an actor is, once its model is loaded."""

    pid: int
    node: str
    actor: str
    """Ray's id of it."""
    cache_tokens: int | None
    has_gpu: bool


@dataclass(slots=True, frozen=True, kw_only=True)
class Report:
    """How an actor is doing."""

    stands_still: float
    """Seconds since its event loop last turned."""
    doing: str
    """In words; empty where nobody asked."""
    progress: int = 0
    """Turns and episodes that ended so far: what hangs has always the same number."""
    resident_tokens: int = 0
    turns: list[Turn] = field(default_factory=list)
    """Sampled since the last report."""
    metrics: dict[str, float] = field(default_factory=dict)
    guests: int = 0
    """Trajectories of other workers that it has."""
    guest_turns: int = 0
    """Turns of them that it samples just now."""
    needs_help: bool = False
    """Its engine is being replaced: others should sample its turns."""


class Replica:
    """All methods run on the actor's event loop, `report` alone on one of its own: it answers while the other hangs."""

    def __init__(self, make: MakeReplica) -> None:
        self._make = make
        self._parts: Parts | None = None
        """None until it is started."""
        self._playing: dict[str, asyncio.Task[Any]] = {}
        self._num_ended = 0
        self._beat = time.monotonic()

    async def start(self) -> Started:
        """Load everything. Raises `UserError`."""
        import ray

        self._name = str(ray.get_runtime_context().get_actor_id())
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._beating = asyncio.create_task(self._beats())
        parts = await asyncio.to_thread(self._make)
        self._guests = Guests(parts.engine)
        self._parts = parts
        await parts.workers.start()
        self._receiver = Receiver(ray.util.get_node_ip_address())
        node = ray.get_runtime_context().get_node_id()
        cache_tokens = getattr(parts.engine, "cache_tokens", None)
        return Started(os.getpid(), node, self._name, cache_tokens, has_gpu=bool(ray.get_gpu_ids()))

    async def play(self, order: RolloutRequest, turns: Mapping[str, Sequence[Turn]]) -> AsyncIterator[Trajectory]:
        """The trajectories of an order as they end. `turns` are recalled."""
        parts = self._running
        parts.recalling.recall(turns)
        ended: asyncio.Queue[Trajectory | None] = asyncio.Queue()
        task = asyncio.create_task(parts.workers.play(order, ended.put_nowait))
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
            parts.recalling.forget(turns)

    async def abort(self, group_id: str) -> None:
        """End a group that nobody waits for. Unknown ones are ignored."""
        if group_id in self._playing:
            self._playing[group_id].cancel()

    async def pause(self) -> None:
        await self._running.workers.pause()

    async def resume(self) -> None:
        await self._running.workers.resume()

    async def sleep(self) -> None:
        await self._running.workers.sleep()

    async def wake(self) -> None:
        await self._running.workers.wake()

    async def update_weights(self, weights: SharedWeights | Sequence[Any], version: int) -> None:
        """Weights that another process of this host shares, or references into the object store. Raises `CannotMap`."""
        if not isinstance(weights, SharedWeights):
            weights = weights_of(await asyncio.gather(*weights))
        await self._running.workers.update_weights(weights, version)

    async def receive_weights(self, meeting: Meeting, rank: int, places: tuple[Place, ...], version: int) -> None:
        """Of another host, which sends them now. The engine samples until they are here. Raises `BroadcastFailed`."""
        shared = await asyncio.to_thread(self._receiver.receive, meeting, rank, places)
        await self._running.workers.update_weights(shared, version)

    async def stop_receiving(self, meeting: Meeting) -> None:
        """The others of the group do not go on."""
        self._receiver.leave(meeting)

    async def report(self, explain: bool = False) -> Report:
        """Called in the concurrency group `watch`, which has an event loop and a thread of its own."""
        stands_still = max(time.monotonic() - self._beat - _BEAT_SECONDS, 0.0)
        doing = ""
        if explain:
            doing = f"its event loop runs {running_code(self._thread)}; its tasks wait: {waiting_tasks(self._loop)}"
        report = Report(stands_still=stands_still, doing=doing)
        if (parts := self._parts) is not None:
            report = replace(
                report,
                progress=self._num_ended + parts.recalling.num_turns + self._guests.num_turns,
                resident_tokens=parts.recalling.resident_tokens + self._guests.resident_tokens,
                turns=parts.recalling.take_new(),
                metrics=self._metrics(parts),
                guests=len(self._guests),
                guest_turns=self._guests.num_running,
                needs_help=getattr(parts.engine, "is_being_replaced", False),
            )
        return report

    async def offer(self, room: Mapping[Any, int], *, is_draining: bool) -> None:
        """Other workers that may sample its turns now, each with so many further trajectories."""
        parts, name = self._running, self._name
        parts.handing_over.helpers.offer({RayHelper(actor, name): free for actor, free in room.items()})
        parts.handing_over.is_draining = is_draining

    async def sample(
        self, prompt: Sequence[int], params: SamplingParams, trajectory_id: str, images: Sequence[Any], owner: str
    ) -> Generation:
        """See `Guests.sample`."""
        return await self._guests.sample(prompt, params, trajectory_id, images, owner)

    async def release_guest(self, trajectory_id: str) -> None:
        """See `Guests.release`."""
        self._guests.release(trajectory_id)

    async def dismiss(self, owner: str) -> None:
        """See `Guests.dismiss`."""
        self._guests.dismiss(owner)

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

    @staticmethod
    def _metrics(parts: Parts) -> dict[str, float]:
        budget = getattr(parts.engine, "budget", None)
        restarts = {f"engine_{kind}": float(count) for kind, count in (budget.counts if budget else {}).items()}
        return restarts | {
            "recalled_turns": float(parts.recalling.num_recalled),
            "handed_over_turns": float(parts.handing_over.helpers.num_turns),
        }

    async def _beats(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)
