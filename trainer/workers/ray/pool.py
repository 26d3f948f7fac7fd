"""`RayWorkers`: rollout workers as Ray actors. Any of them may die at any time, and every order is answered once."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from agentloop.config.workers import WorkersConfig
from agentloop.errors import EngineError, UserError
from agentloop.process.restart_budget import RestartBudget
from agentloop.trainer.cluster.reservation import Seats, take_seats
from agentloop.trainer.cluster.session import check_workers_fit, connect, require_ray
from agentloop.trainer.workers.concurrency import ConcurrencyLimit
from agentloop.trainer.workers.lengths import LengthMemory
from agentloop.trainer.workers.ray.open_request import OpenRequest
from agentloop.trainer.workers.ray.remote_weights import Published
from agentloop.trainer.workers.ray.replica import MakeReplica
from agentloop.trainer.workers.ray.slots import Slot, for_order, helpers, to_retire
from agentloop.trainer.workers.ray.weight_distributor import WeightDistributor
from agentloop.trainer.workers.ray.worker import REPORT_SECONDS, RayWorker, WorkerLost
from agentloop.trainer.workers.worker_count import WorkerCount, draining_nodes
from agentloop.types.requests import RolloutRequest
from agentloop.weights.shelf import WeightShelf

if TYPE_CHECKING:
    import torch

    from agentloop.trainer.cluster.learner_host import Seat
    from agentloop.types.requests import Group
    from agentloop.types.trajectory import Trajectory

_log = logging.getLogger(__name__)


class RayWorkers:
    """`Workers` of `config.count` actors, each made by `make` in its own process, with `gpus` GPUs or that part of one.

    `learner_gpus` of this node, and of further ones up to `learner_nodes`, are kept from them: CUDA must not have been
    used in this process, and sees only the former from `start` on.

    `shelf_on_host` keeps published weights off the GPU of the learner.

    `most` is the most episodes in flight on one of them, `longest` the most tokens of a trajectory. An order waits here
    until a worker has room; those that are expected to take longest go first, and all of a group to one worker, where
    its prompt is cached.

    A worker that dies or hangs is started anew and gets the current weights. What it had finished is kept; its other
    episodes are given out again with the turns that it reported, which are recalled instead of sampled.

    One that is to leave is drained: other workers sample the turns of its episodes. All of them have the weights that a
    group was admitted with, or newer ones, so whoever samples a token, it is not too old. `wanted` may ask for another
    number of workers while the run goes on.
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
        shelf_on_host: bool = False,
        wanted: WorkerCount | None = None,
    ) -> None:
        self.policy_version = 0
        self.failures: Counter[str] = Counter()
        """Workers lost so far, by kind."""
        self._of_the_gone: Counter[str] = Counter()
        """What workers had counted that are no more."""
        self._make = make
        self._config = config
        self._gpus, self._learner_gpus, self._learner_nodes = gpus, learner_gpus, learner_nodes
        self._seats: Seats | None = None
        self._most, self._longest = most, longest
        self._stall_seconds = stall_seconds
        self._wanted = wanted
        self._slots = [self._new_slot() for _ in range(config.count)]
        self._following: asyncio.Task[None] | None = None
        self._playing: set[asyncio.Task[None]] = set()
        self._waiting: list[OpenRequest] = []
        self._lengths = LengthMemory()
        self._shelf = WeightShelf(on_host=shelf_on_host)
        self._courier = WeightDistributor(config)
        self._weights: Published | None = None
        self._paused = False
        self._awake = asyncio.Event()
        self._awake.set()
        self._starting: set[asyncio.Future[None]] = set()
        """Workers on their way."""
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
        ready = [self._fill(slot) for slot in self._slots]
        try:
            await asyncio.gather(*ready)
        except BaseException:
            await self.close()
            raise
        self._following = asyncio.create_task(self._follow())

    def _new_slot(self) -> Slot:
        limit = ConcurrencyLimit(self._most, cache_tokens=None, longest=self._longest)
        return Slot(RestartBudget(self._config.max_restarts), limit)

    def _fill(self, slot: Slot) -> asyncio.Future[None]:
        """Start a worker in it; the future is done when that is ready."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        slot.life = asyncio.create_task(self._live(slot, ready))
        return ready

    def resize(self, count: int) -> None:
        """Have so many workers from now on. New ones get orders when they are ready. Those that are too many are
        drained: they get no more orders, others sample the turns of their episodes, and they end with the last of
        these. Raises `UserError` where there is no room."""
        if count < 1:
            raise UserError(f"A run needs a worker: {count} of them cannot play it. End the run instead.")
        config = self._config.model_copy(update={"count": count})
        check_workers_fit(config, self._gpus, self._learner_gpus, self._learner_nodes)
        stay = [slot for slot in self._slots if not slot.is_gone]
        for slot in to_retire(stay, count):
            self._retire(slot)
        for _ in range(count - len(stay)):
            self._slots.append(self._new_slot())
            self._fill(self._slots[-1]).set_result(None)  # the run goes on where it fails

    def _retire(self, slot: Slot) -> None:
        slot.is_retired = True
        if slot.worker is not None:
            slot.worker.drain()
        elif slot.life is not None:
            slot.life.cancel()

    async def _follow(self) -> None:
        """Do what is asked from outside: another number of workers, nodes that are to be given back."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if self._wanted is not None and (count := self._wanted.take()) is not None:
                try:
                    self.resize(count)
                except UserError as error:
                    _log.warning("The number of workers stays as it is. %s", error)
            leaving = await asyncio.to_thread(draining_nodes)
            for slot in self._slots:
                if slot.worker is not None and slot.worker.node in leaving:
                    slot.worker.drain()

    def room(self) -> int:
        """See `Workers.room`. A worker that is being restarted counts: orders wait for it."""
        free = sum(slot.room for slot in self._slots)
        return max(free - sum(len(order.missing) for order in self._waiting), 0)

    async def play(self, order: RolloutRequest, on_trajectory: Callable[[Trajectory], None] | None = None) -> Group:
        """See `Workers.play`."""
        if self._failure is not None:
            raise self._failure
        opened = OpenRequest(order, on_trajectory)
        self._waiting.append(opened)
        self._give_out()
        try:
            group = await opened.answer
        except asyncio.CancelledError:
            self._abort(opened)
            raise
        self._lengths.learn(order, opened.longest)
        return group

    def _abort(self, opened: OpenRequest) -> None:
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

    async def sleep(self) -> None:
        """See `Workers.sleep`. Those that are just being started are waited for: they need the memory once."""
        self._awake.clear()
        while self._starting:
            await asyncio.wait(self._starting)
        async with self._changing:
            if self._failure is None:
                await self._tell_all(lambda worker: worker.sleep())

    async def wake(self) -> None:
        """See `Workers.wake`."""
        async with self._changing:
            await self._tell_all(lambda worker: worker.wake())
            self._awake.set()

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """See `Workers.update_weights`: written once, taken by all workers at the same time."""
        async with self._changing:
            published = Published(await asyncio.to_thread(self._shelf.put, weights), version)
            before, self._weights = self._weights, published
            try:
                if self._failure is not None:
                    raise self._failure
                await self._courier.bring(published, [slot.worker for slot in self._slots if slot.worker is not None])
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
            "workers/draining": float(sum(slot.worker.is_draining for slot in alive if slot.worker is not None)),
            "workers/room": float(sum(slot.limit.limit for slot in alive)),
        }
        counts = self.failures + self._of_the_gone
        for slot in alive:
            assert slot.worker is not None
            counts.update(slot.worker.metrics)
        return metrics | self._courier.metrics() | {f"workers/{name}": float(count) for name, count in counts.items()}

    def _give_out(self) -> None:
        """Orders to the workers with most room: those whose worker was lost first, then the longest."""
        self._waiting = [order for order in self._waiting if not order.answer.done()]
        self._waiting.sort(key=lambda each: (each.num_lost, self._lengths.expect(each.order)), reverse=True)
        while self._waiting:
            slot = for_order(self._slots, len(self._waiting[0].missing))
            if slot is None or slot.worker is None:
                return
            self._play_on(slot.worker, self._waiting.pop(0))

    def _play_on(self, worker: RayWorker, order: OpenRequest) -> None:
        order.worker = worker
        worker.orders.add(order)  # now: its task begins later
        task = asyncio.create_task(worker.play(order))
        self._playing.add(task)
        task.add_done_callback(self._played)

    def _played(self, task: asyncio.Task[None]) -> None:
        self._playing.discard(task)
        if not task.cancelled():
            self._give_out()

    async def _live(self, slot: Slot, ready: asyncio.Future[None]) -> None:
        """Keep a worker in the slot, until it is not wanted any more or there were too many."""
        index = self._slots.index(slot)
        while not slot.is_retired:
            worker = RayWorker(
                self._make,
                self._config,
                gpus=self._gpus,
                stall_seconds=self._stall_seconds,
                who_helps=lambda worker: helpers(self._slots, worker),
            )
            try:
                async with self._staying_awake():
                    await self._bring_up(slot, worker)
                if not ready.done():
                    ready.set_result(None)
                await worker.watch()
                self._take_back(slot, worker)
                await worker.close()
            except WorkerLost as lost:
                self._lose(slot, worker, lost)
                if slot.is_retired:
                    return
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

    @asynccontextmanager
    async def _staying_awake(self) -> AsyncIterator[None]:
        """From when it is the engines' turn, which does not end before."""
        await self._awake.wait()
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting.add(over)
        try:
            yield
        finally:
            self._starting.discard(over)
            over.set_result(None)

    async def _bring_up(self, slot: Slot, worker: RayWorker) -> None:
        """Until the worker is what all others are."""
        started = await worker.start()
        async with self._changing:
            try:
                if self._weights is not None:
                    await self._courier.bring(self._weights, [worker])
                    worker.check()
                if self._paused:
                    await worker.pause()
            except EngineError as error:
                raise WorkerLost("start", str(error)) from error
            slot.limit = ConcurrencyLimit(self._most, cache_tokens=started.cache_tokens, longest=self._longest)
            worker.limit, slot.worker = slot.limit, worker
        self._give_out()

    def _lose(self, slot: Slot, worker: RayWorker, lost: WorkerLost) -> None:
        self.failures[lost.kind] += 1
        worker.kill()
        for order in worker.orders:
            order.num_lost += 1
        self._take_back(slot, worker, str(lost))

    def _take_back(self, slot: Slot, worker: RayWorker, lost: str = "") -> None:
        """What it plays is for others."""
        slot.worker = None
        self._of_the_gone.update(worker.metrics)
        for other in self._slots:
            if other.worker is not None:
                other.worker.dismiss(worker)
        for order in worker.orders:
            order.worker = None
            if order.answer.done():
                continue
            if order.num_lost > self._config.max_replays:
                order.give_up(lost)
            else:
                self._waiting.append(order)
        worker.orders.clear()
        self._give_out()

    def _give_up(self, index: int, slot: Slot, lost: WorkerLost, ready: asyncio.Future[None]) -> None:
        slot.is_given_up = True
        message = (
            f"Worker {index} was lost too often ({slot.budget} in the last hour, workers.max_restarts is "
            f"{self._config.max_restarts}). The last time it {_VERBS[lost.kind]}: {lost}. The logs of its processes "
            f"are in {_log_folder()}."
        )
        if ready.done() and not all(each.is_gone for each in self._slots):
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
        tasks = [*self._playing, *(slot.life for slot in self._slots if slot.life), *filter(None, [self._following])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._courier.close()
        if self._seats is not None:
            self._seats.give_up()
            self._seats = None
        if self._owns_ray:
            self._owns_ray = False
            await asyncio.to_thread(require_ray().shutdown)


_VERBS = {"died": "died", "hung": "hung", "start": "did not start"}


def _log_folder() -> str:
    return f"{require_ray().worker._global_node.get_session_dir_path()}/logs"
