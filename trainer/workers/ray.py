"""`RayWorkers`: rollout workers as Ray actors. Any of them may die at any time, and every order is answered once."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentloop.engines.shared_weights import WeightShelf
from agentloop.errors import EngineError, UserError
from agentloop.restarts import RestartBudget
from agentloop.trainer.workers.base import GroupOrder
from agentloop.trainer.workers.concurrency import ConcurrencyLimit
from agentloop.trainer.workers.config import WorkersConfig
from agentloop.trainer.workers.lengths import LengthMemory
from agentloop.trainer.workers.ray_orders import OpenOrder
from agentloop.trainer.workers.ray_replica import MakeReplica
from agentloop.trainer.workers.ray_seats import Seats, take_seats
from agentloop.trainer.workers.ray_session import connect, require_ray
from agentloop.trainer.workers.ray_weights import Published
from agentloop.trainer.workers.ray_worker import RayWorker, WorkerLost

if TYPE_CHECKING:
    import torch

    from agentloop.rollout import Group
    from agentloop.trainer.placement.home import Seat
    from agentloop.trajectory import Trajectory

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Slot:
    """A place for a worker; its worker is replaced when it is lost."""

    budget: RestartBudget
    limit: ConcurrencyLimit
    worker: RayWorker | None = None
    """None while there is none that is ready."""
    is_given_up: bool = False

    @property
    def in_flight(self) -> int:
        return self.worker.in_flight if self.worker else 0

    @property
    def room(self) -> int:
        return self.limit.room(self.in_flight)


class RayWorkers:
    """`Workers` of `config.count` actors, each made by `make` in its own process, with `gpus` GPUs or that part of one.

    `learner_gpus` of this node, and of further ones up to `learner_nodes`, are kept from them: CUDA must not have been
    used in this process, and sees only the former from `start` on.

    `most` is the most episodes in flight on one of them, `longest` the most tokens of a trajectory. An order waits here
    until a worker has room; those that are expected to take longest go first, and all of a group to one worker, where
    its prompt is cached.

    A worker that dies or hangs is started anew and gets the current weights. What it had finished is kept; its other
    episodes are given out again with the turns that it reported, which are recalled instead of sampled.
    """

    def __init__(
        self,
        make: MakeReplica,
        config: WorkersConfig,
        *,
        gpus: float = 0,
        learner_gpus: int = 0,
        learner_nodes: int = 1,
        most: int,
        longest: int,
        stall_seconds: float,
    ) -> None:
        self.policy_version = 0
        self.failures: Counter[str] = Counter()
        """Workers lost so far, by kind."""
        self._make = make
        self._config = config
        self._gpus, self._learner_gpus, self._learner_nodes = gpus, learner_gpus, learner_nodes
        self._seats: Seats | None = None
        self._most, self._longest = most, longest
        self._stall_seconds = stall_seconds
        self._slots = [
            _Slot(RestartBudget(config.max_restarts), ConcurrencyLimit(most, cache_tokens=None, longest=longest))
            for _ in range(config.count)
        ]
        self._lives: list[asyncio.Task[None]] = []
        self._playing: set[asyncio.Task[None]] = set()
        self._waiting: list[OpenOrder] = []
        self._lengths = LengthMemory()
        self._shelf = WeightShelf()
        self._weights: Published | None = None
        self._paused = False
        self._changing = asyncio.Lock()
        """Held while weights or pauses go out, and while a new worker gets them."""
        self._owns_ray = False
        self._failure: Exception | None = None

    @property
    def learner_seats(self) -> tuple[Seat, ...]:
        """See `Workers.learner_seats`."""
        return self._seats.of_nodes if self._seats else ()

    async def start(self) -> None:
        """See `Workers.start`; Ray is started where `config.address` names no cluster."""
        self._owns_ray = connect(self._config, self._gpus, self._learner_gpus, self._learner_nodes)
        if self._learner_gpus:
            self._seats = await asyncio.to_thread(take_seats, self._learner_gpus, self._learner_nodes)
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self.learner_seats[0].gpus)
        ready = [asyncio.get_running_loop().create_future() for _ in self._slots]
        self._lives = [
            asyncio.create_task(self._live(index, slot, future))
            for index, (slot, future) in enumerate(zip(self._slots, ready, strict=True))
        ]
        try:
            await asyncio.gather(*ready)
        except BaseException:
            await self.close()
            raise

    def room(self) -> int:
        """See `Workers.room`. A worker that is being restarted counts: orders wait for it."""
        free = sum(slot.room for slot in self._slots if not slot.is_given_up)
        return max(free - sum(len(order.missing) for order in self._waiting), 0)

    async def play(self, order: GroupOrder, on_trajectory: Callable[[Trajectory], None] | None = None) -> Group:
        """See `Workers.play`."""
        if self._failure is not None:
            raise self._failure
        opened = OpenOrder(order, on_trajectory)
        self._waiting.append(opened)
        self._give_out()
        try:
            group = await opened.answer
        except asyncio.CancelledError:
            self._abort(opened)
            raise
        self._lengths.learn(order, opened.longest)
        return group

    def _abort(self, opened: OpenOrder) -> None:
        if opened in self._waiting:
            self._waiting.remove(opened)
        elif opened.worker is not None:
            opened.worker.abort(opened)
        self._give_out()

    async def pause(self) -> None:
        """See `Workers.pause`."""
        async with self._changing:
            self._paused = True
            await self._tell_all(lambda worker: worker.pause())

    async def resume(self) -> None:
        """See `Workers.resume`."""
        async with self._changing:
            self._paused = False
            await self._tell_all(lambda worker: worker.resume())

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """See `Workers.update_weights`: written once, taken by all workers at the same time."""
        async with self._changing:
            published = Published(await asyncio.to_thread(self._shelf.put, weights), version)
            before, self._weights = self._weights, published
            try:
                await self._tell_all(lambda worker: worker.update_weights(published))
            except Exception:
                self._weights = before
                raise
        self.policy_version = version

    async def _tell_all(self, tell: Callable[[RayWorker], Any]) -> None:
        """A worker that is lost meanwhile hears it when it is back."""

        async def one(worker: RayWorker) -> None:
            with suppress(WorkerLost):
                await tell(worker)

        if self._failure is not None:
            raise self._failure
        await asyncio.gather(*(one(slot.worker) for slot in self._slots if slot.worker is not None))

    def metrics(self) -> dict[str, float]:
        """See `Workers.metrics`."""
        alive = [slot for slot in self._slots if slot.worker is not None]
        metrics = {
            "workers/alive": float(len(alive)),
            "workers/room": float(sum(slot.limit.limit for slot in alive)),
        }
        metrics |= {f"workers/{kind}": float(count) for kind, count in self.failures.items()}
        for slot in alive:
            assert slot.worker is not None
            for name, value in slot.worker.metrics.items():
                metrics[f"workers/{name}"] = metrics.get(f"workers/{name}", 0.0) + value
        return metrics

    def _give_out(self) -> None:
        """Orders to the workers with most room: those whose worker was lost first, then the longest."""
        self._waiting = [order for order in self._waiting if not order.answer.done()]
        self._waiting.sort(key=lambda each: (each.num_lost, self._lengths.expect(each.order)), reverse=True)
        while self._waiting:
            slot = max((slot for slot in self._slots if slot.worker), key=lambda slot: slot.room, default=None)
            # A group that is larger than any room goes to a worker that has nothing else to do.
            if slot is None or (slot.room < len(self._waiting[0].missing) and slot.in_flight):
                return
            assert slot.worker is not None
            self._play_on(slot.worker, self._waiting.pop(0))

    def _play_on(self, worker: RayWorker, order: OpenOrder) -> None:
        order.worker = worker
        worker.orders.add(order)  # now: its task begins later
        task = asyncio.create_task(worker.play(order))
        self._playing.add(task)
        task.add_done_callback(self._played)

    def _played(self, task: asyncio.Task[None]) -> None:
        self._playing.discard(task)
        if not task.cancelled():
            self._give_out()

    async def _live(self, index: int, slot: _Slot, ready: asyncio.Future[None]) -> None:
        """Keep a worker in the slot, until the run ends or there were too many."""
        while True:
            worker = RayWorker(self._make, self._config, gpus=self._gpus, stall_seconds=self._stall_seconds)
            try:
                await self._bring_up(slot, worker)
                if not ready.done():
                    ready.set_result(None)
                await worker.watch()
            except WorkerLost as lost:
                self._lose(slot, worker, lost)
                if not slot.budget.spend(lost.kind):
                    self._give_up(index, slot, lost, ready)
                    return
                _log.warning("Worker %d is started again: it %s, %s.", index, _VERBS[lost.kind], lost)
            except Exception as error:  # a model that cannot be loaded cannot be loaded again either
                worker.kill()
                self._fail(error, ready)
                return
            except asyncio.CancelledError:
                await worker.close()
                raise

    async def _bring_up(self, slot: _Slot, worker: RayWorker) -> None:
        """Until the worker is what all others are."""
        started = await worker.start()
        async with self._changing:
            try:
                if self._weights is not None:
                    await worker.update_weights(self._weights)
                if self._paused:
                    await worker.pause()
            except EngineError as error:
                raise WorkerLost("start", str(error)) from error
            slot.limit = ConcurrencyLimit(self._most, cache_tokens=started.cache_tokens, longest=self._longest)
            worker.limit, slot.worker = slot.limit, worker
        self._give_out()

    def _lose(self, slot: _Slot, worker: RayWorker, lost: WorkerLost) -> None:
        """Take back what it plays."""
        self.failures[lost.kind] += 1
        slot.worker = None
        worker.kill()
        for order in worker.orders:
            order.worker = None
            order.num_lost += 1
            if order.answer.done():
                continue
            if order.num_lost > self._config.max_replays:
                order.give_up(str(lost))
            else:
                self._waiting.append(order)
        worker.orders.clear()
        self._give_out()

    def _give_up(self, index: int, slot: _Slot, lost: WorkerLost, ready: asyncio.Future[None]) -> None:
        slot.is_given_up = True
        message = (
            f"Worker {index} was lost too often ({slot.budget} in the last hour, workers.max_restarts is "
            f"{self._config.max_restarts}). The last time it {_VERBS[lost.kind]}: {lost}. The logs of its processes "
            f"are in {_log_folder()}."
        )
        if ready.done() and not all(each.is_given_up for each in self._slots):
            _log.error("%s The run goes on with the other workers.", message)
            return
        self._fail(UserError(f"{message} Correct that, then go on with the same run.folder."), ready)

    def _fail(self, error: Exception, ready: asyncio.Future[None]) -> None:
        """Nothing can be played any more."""
        self._failure = error
        if not ready.done():
            ready.set_exception(error)
        playing = [order for slot in self._slots if slot.worker for order in slot.worker.orders]
        for order in [*self._waiting, *playing]:
            order.fail(error)
        self._waiting.clear()

    async def close(self) -> None:
        """See `Workers.close`."""
        for task in [*self._lives, *self._playing]:
            task.cancel()
        await asyncio.gather(*self._lives, *self._playing, return_exceptions=True)
        self._lives = []
        if self._seats is not None:
            self._seats.give_up()
            self._seats = None
        if self._owns_ray:
            self._owns_ray = False
            await asyncio.to_thread(require_ray().shutdown)


_VERBS = {"died": "died", "hung": "hung", "start": "did not start"}


def _log_folder() -> str:
    return f"{require_ray().worker._global_node.get_session_dir_path()}/logs"
