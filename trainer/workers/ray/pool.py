"""`RayWorkers`: rollout workers as Ray actors. Any may die at any time, and every request is answered once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from agentloop.config.workers import WorkersConfig
from agentloop.errors import EngineError, UserError
from agentloop.process.restart_budget import RestartBudget
from agentloop.trainer.cluster.reservation import GpuReservation
from agentloop.trainer.cluster.session import check_workers_fit, connect, log_folder, shutdown, this_node_is_alive
from agentloop.trainer.workers.concurrency import ConcurrencyLimit
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.protocol import Workers
from agentloop.trainer.workers.ray.object_weights import Published
from agentloop.trainer.workers.ray.replica import MakeReplica
from agentloop.trainer.workers.ray.request_queue import RequestQueue
from agentloop.trainer.workers.ray.slots import Slot, to_retire
from agentloop.trainer.workers.ray.weight_distributor import WeightDistributor
from agentloop.trainer.workers.ray.worker import REPORT_SECONDS, RayWorker, WorkerLost
from agentloop.trainer.workers.worker_count import WorkerCount, draining_nodes
from agentloop.types.requests import RolloutRequest
from agentloop.weights.shelf import WeightShelf

if TYPE_CHECKING:
    from agentloop.types.requests import Group
    from agentloop.types.trajectory import Trajectory
    from agentloop.weights.handle import WeightHandle

_log = logging.getLogger(__name__)


class RayWorkers(Workers):
    """`Workers` with `config.count` actors, which `make` creates in their processes, with `gpus` GPUs each.

    `learner_gpus` on each of `learner_nodes` nodes, this node first, are reserved for the learner. CUDA must not have
    been used in this process: from `start` on it sees only the reserved GPUs of this node. `shelf_on_host` keeps
    published weights off the GPU of the learner.

    `most` is the largest number of episodes in flight on one worker, `longest` the largest number of tokens of a
    trajectory. A request waits in a `RequestQueue` until a worker has room.

    A worker that dies or hangs is restarted with the current weights. Its finished trajectories are kept. Other workers
    play its unfinished episodes again, and replay the turns that it reported instead of sampling them.

    A worker that leaves is drained: it gets no more requests and has `config.drain_seconds` to finish its episodes. The
    rest is played again as above. `wanted` can change the number of workers during the run.
    """

    def __init__(
        self,
        make: MakeReplica,
        config: WorkersConfig,
        *,
        gpus: float = 0,
        learner_gpus: int = 0,
        learner_nodes: int = 1,
        learner_in_process: bool = True,
        most: int,
        longest: int,
        stall_seconds: float,
        shelf_on_host: bool = False,
        wanted: WorkerCount | None = None,
    ) -> None:
        self.policy_version = 0
        self.failures: Counter[str] = Counter()
        """Number of workers lost so far, by kind."""
        self._of_the_gone: Counter[str] = Counter()
        """Metrics of former workers."""
        self._make = make
        self._config = config
        self._gpus, self._learner_gpus, self._learner_nodes = gpus, learner_gpus, learner_nodes
        self._learner_in_process = learner_in_process
        self._reservation: GpuReservation | None = None
        self._most, self._longest = most, longest
        self._stall_seconds = stall_seconds
        self._wanted = wanted
        self.slots = [self._new_slot() for _ in range(config.count)]
        """Slots of the workers, including retired ones."""
        self._following: asyncio.Task[None] | None = None
        self._queue = RequestQueue(self.slots, config.max_replays)
        self._shelf = WeightShelf(on_host=shelf_on_host)
        self.distributor = WeightDistributor(config)
        self.published: Published | None = None
        """Newest weights that the workers have or are receiving."""
        self._paused = False
        self._awake = asyncio.Event()
        self._awake.set()
        self._starting: set[asyncio.Future[None]] = set()
        """Workers that are starting."""
        self._changing = asyncio.Lock()
        """Held while weights or pauses are sent to workers, including new ones."""
        self._is_reserved = False
        self._owns_ray = False

    @property
    def reservation(self) -> GpuReservation | None:
        return self._reservation

    async def reserve(self) -> None:
        """Connect to Ray, which starts unless `config.address` names a cluster, and reserve the learner's GPUs."""
        if self._is_reserved:
            return
        self._is_reserved = True
        self._owns_ray = connect(self._config, self._gpus, self._learner_gpus, self._learner_nodes)
        if self._learner_gpus:
            take = partial(
                GpuReservation.take,
                self._learner_nodes,
                num_gpus=self._learner_gpus,
                in_process=self._learner_in_process,
            )
            self._reservation = await asyncio.to_thread(take)
            self._reservation.show_first_gpu()

    async def start(self) -> None:
        """Start all workers."""
        await self.reserve()
        ready = [self._fill(slot) for slot in self.slots]
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
        """Start a worker in the slot; the future is done when the worker is ready."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        slot.life = asyncio.create_task(self._live(slot, ready))
        return ready

    def resize(self, count: int) -> None:
        """Change the number of workers. New workers get requests when they are ready; surplus workers are drained.

        Raises `UserError` if there is no room for that many.
        """
        if count < 1:
            raise UserError(f"A run needs a worker, but {count} were requested. Request at least 1, or end the run.")
        config = self._config.replace(count=count)
        check_workers_fit(config, self._gpus, self._learner_gpus, self._learner_nodes)
        stay = [slot for slot in self.slots if not slot.is_gone]
        for slot in to_retire(stay, count):
            self._retire(slot)
        for _ in range(count - len(stay)):
            self.slots.append(self._new_slot())
            self._fill(self.slots[-1]).set_result(None)  # if it fails, the run continues

    def _retire(self, slot: Slot) -> None:
        slot.is_retired = True
        if slot.worker is not None:
            slot.worker.drain()
        elif slot.life is not None:
            slot.life.cancel()

    async def _follow(self) -> None:
        """Follow external requests: a new number of workers, or nodes that Ray must return."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if self._wanted is not None and (count := self._wanted.take()) is not None:
                try:
                    self.resize(count)
                except UserError as error:
                    _log.warning("The number of workers does not change. %s", error)
                    self._wanted.forget()
            leaving = await asyncio.to_thread(draining_nodes)
            for slot in self.slots:
                if slot.worker is not None and slot.worker.node in leaving:
                    slot.worker.drain()

    def room(self) -> int:
        return self._queue.room()

    async def play(self, request: RolloutRequest, on_trajectory: Callable[[Trajectory], None] | None = None) -> Group:
        return await self._queue.play(request, on_trajectory)

    async def pause(self) -> None:
        async with self._changing:
            self._paused = True
            await self._change_all(LocalWorkers.pause)

    async def resume(self) -> None:
        async with self._changing:
            self._paused = False
            await self._change_all(LocalWorkers.resume)

    async def sleep(self, *, keep_weights: bool = True) -> None:
        """Sleep, after workers that are starting are ready, because starting needs the memory."""
        self._awake.clear()
        while self._starting:
            await asyncio.wait(self._starting)
        async with self._changing:
            if self._queue.failure is None:
                await self._change_all(LocalWorkers.sleep)

    async def wake(self) -> None:
        async with self._changing:
            await self._change_all(LocalWorkers.wake)
            self._awake.set()

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        """Write the weights once; all workers take them concurrently."""
        async with self._changing:
            published = Published(await asyncio.to_thread(weights.shared, self._shelf), version)
            before, self.published = self.published, published
            try:
                self._queue.raise_failure()
                await self.distributor.bring(published, self._queue.workers)
            except Exception:
                self.published = before
                raise
        self.policy_version = version

    async def _change_all(self, change: Callable[[LocalWorkers], Awaitable[None]]) -> None:
        """Change the state of all workers. A worker that is lost meanwhile gets that state after its restart."""

        async def one(worker: RayWorker) -> None:
            with suppress(WorkerLost):
                await worker.change(change)

        self._queue.raise_failure()
        await asyncio.gather(*(one(worker) for worker in self._queue.workers))

    def metrics(self) -> dict[str, float]:
        alive = self._queue.workers
        metrics = {
            "workers/alive": float(len(alive)),
            "workers/draining": float(sum(worker.is_draining for worker in alive)),
            "workers/room": float(sum(slot.limit.limit for slot in self.slots if slot.worker is not None)),
        }
        counts = self.failures + self._of_the_gone
        for worker in alive:
            counts.update(worker.metrics)
        metrics |= self.distributor.metrics()
        return metrics | {f"workers/{name}": float(count) for name, count in counts.items()}

    async def _live(self, slot: Slot, ready: asyncio.Future[None]) -> None:
        """Keep a worker in the slot until it is retired, or workers are lost too often."""
        index = self.slots.index(slot)
        while not slot.is_retired:
            worker = RayWorker(self._make, self._config, gpus=self._gpus, stall_seconds=self._stall_seconds)
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
                if not await asyncio.to_thread(this_node_is_alive):
                    self._fail(_node_died(), ready)
                    return
                if not slot.budget.spend(lost.kind):
                    self._give_up(index, slot, lost, ready)
                    return
                _log.warning("Restarting worker %d: it %s, %s.", index, _VERBS[lost.kind], lost)
            except Exception as error:  # a model that fails to load will fail again
                worker.kill()
                self._fail(error, ready)
                return
            except asyncio.CancelledError:
                await worker.close()
                raise

    @asynccontextmanager
    async def _staying_awake(self) -> AsyncIterator[None]:
        """Wait until the engines are awake, and keep them awake inside the block."""
        await self._awake.wait()
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting.add(over)
        try:
            yield
        finally:
            self._starting.discard(over)
            over.set_result(None)

    async def _bring_up(self, slot: Slot, worker: RayWorker) -> None:
        """Start the worker and bring it to the state of the others."""
        started = await worker.start()
        async with self._changing:
            try:
                if self.published is not None:
                    await self.distributor.bring(self.published, [worker])
                    worker.check()
                if self._paused:
                    await worker.change(LocalWorkers.pause)
            except EngineError as error:
                raise WorkerLost("start", str(error)) from error
            slot.limit = ConcurrencyLimit(self._most, cache_tokens=started.cache_tokens, longest=self._longest)
            worker.limit, slot.worker = slot.limit, worker
        self._queue.give_out()

    def _lose(self, slot: Slot, worker: RayWorker, lost: WorkerLost) -> None:
        self.failures[lost.kind] += 1
        worker.kill()
        for request in worker.requests:
            request.num_lost += 1
        self._take_back(slot, worker, str(lost))

    def _take_back(self, slot: Slot, worker: RayWorker, lost: str = "") -> None:
        """Let other workers play the requests of a worker that is gone."""
        slot.worker = None
        self._of_the_gone.update(worker.metrics)
        self._queue.take_back(worker, lost)

    def _give_up(self, index: int, slot: Slot, lost: WorkerLost, ready: asyncio.Future[None]) -> None:
        slot.is_given_up = True
        message = (
            f"Worker {index} was lost too often ({slot.budget} in the last hour, workers.max_restarts is "
            f"{self._config.max_restarts}). The last time it {_VERBS[lost.kind]}: {lost}. The logs of its processes "
            f"are in {log_folder()}."
        )
        if ready.done() and not all(each.is_gone for each in self.slots):
            _log.error("%s The run continues with the other workers.", message)
            return
        self._fail(UserError(f"{message} Correct that, then resume with the same run.folder."), ready)

    def _fail(self, error: Exception, ready: asyncio.Future[None]) -> None:
        """Fail all requests, because no worker is left."""
        if not ready.done():
            ready.set_exception(error)
        self._queue.fail(error)

    async def close(self) -> None:
        tasks = [*(slot.life for slot in self.slots if slot.life), *filter(None, [self._following])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(self._queue.close(), *tasks, return_exceptions=True)
        self.distributor.close()
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
        if self._owns_ray:
            self._owns_ray = False
            # Messages about lost workers have named the folder of their logs.
            await asyncio.to_thread(shutdown, keep_logs=bool(self.failures))


def _node_died() -> UserError:
    return UserError(
        "Ray has ended on this machine, and with it all workers: a process of Ray itself was killed, perhaps because "
        f"memory ran out. Its logs are in {log_folder()}: raylet.out has the cause. Resume with the same run.folder."
    )


_VERBS = {"died": "died", "hung": "hung", "start": "did not start"}
