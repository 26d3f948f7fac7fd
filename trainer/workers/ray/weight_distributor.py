"""`WeightDistributor`: published weights on their way to workers, each by the shortest way that is open to it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from agentloop.config.workers import WorkersConfig
from agentloop.trainer.cluster.session import require_ray
from agentloop.trainer.workers.ray.remote_weights import Published
from agentloop.trainer.workers.ray.worker import RayWorker, WorkerLost
from agentloop.weights.broadcast import Backend, BroadcastFailed, Sender
from agentloop.weights.buckets import DeviceHandle
from agentloop.weights.shelf import CannotMap

_log = logging.getLogger(__name__)
_ATTEMPTS = 2
"""At a broadcast in which no worker is lost: what fails so often will not work here."""


class WeightDistributor:
    """Workers of this host map the memory that is shared. All others together get a broadcast, which goes on while they
    sample; those that it does not reach get objects of Ray. `WorkersConfig.weights` may rule the first two out.
    """

    def __init__(self, config: WorkersConfig) -> None:
        self._maps = config.weights == "auto"
        self._broadcasts = config.weights != "objects"
        self._seconds = config.hang_seconds
        self._group: tuple[Sender, tuple[RayWorker, ...]] | None = None
        """Kept from update to update, while its members are the same."""
        self._count: Counter[str] = Counter()

    async def bring(self, published: Published, workers: Sequence[RayWorker]) -> None:
        """To all of them at the same time. Who is lost meanwhile gets nothing, and raises nothing."""
        near = [worker for worker in workers if self._maps and worker.maps and worker.is_of_this_node]
        far = [worker for worker in workers if worker not in near]
        mapped, _ = await asyncio.gather(
            asyncio.gather(*(_map(published, worker) for worker in near)), self._send(published, far)
        )
        self._count["mapped"] += sum(has and not worker.is_lost for worker, has in zip(near, mapped, strict=True))
        await self._send(published, [worker for worker, has in zip(near, mapped, strict=True) if not has])

    def metrics(self) -> dict[str, float]:
        """How often weights reached a worker, by the way they went."""
        return {f"workers/weights_{way}": float(count) for way, count in self._count.items() if count}

    async def _send(self, published: Published, workers: Sequence[RayWorker]) -> None:
        workers = [worker for worker in workers if not worker.is_lost]
        attempts = _ATTEMPTS if self._broadcasts else 0
        while workers and attempts:
            left = await self._broadcast(published, workers)
            attempts -= not any(worker.is_lost for worker in workers)
            workers = [worker for worker in left if not worker.is_lost]
        if workers and self._broadcasts:
            _log.warning("New weights go to workers of other hosts through Ray's object store from now on.")
            self._broadcasts = False
        await asyncio.gather(*(_store(published, worker) for worker in workers))
        self._count["stored"] += len(workers)

    async def _broadcast(self, published: Published, workers: Sequence[RayWorker]) -> list[RayWorker]:
        """Whom it did not reach."""
        sender = self._sender_to(published, workers)
        sending = _in_thread(lambda: sender.send(published.shared))
        sending.add_done_callback(lambda sent: self._end_group(sender) if sent.exception() else None)
        calls = (self._receive(sender, rank, published, worker) for rank, worker in enumerate(workers, start=1))
        received = await asyncio.gather(*calls)
        if all(received):
            await sending
        self._count["broadcast"] += sum(received)
        return [worker for worker, has in zip(workers, received, strict=True) if not has]

    async def _receive(self, sender: Sender, rank: int, published: Published, worker: RayWorker) -> bool:
        places, version = published.shared.places, published.version
        try:
            await worker.ask("receive_weights", sender.meeting, rank, places, version)
        except (BroadcastFailed, WorkerLost) as error:
            if not worker.is_lost:
                _log.warning("Weights are sent again: %s", error)
            self._end_group(sender)  # the others would wait for this one
            return False
        return True

    def _sender_to(self, published: Published, workers: Sequence[RayWorker]) -> Sender:
        if self._group is not None and self._group[1] == tuple(workers):
            return self._group[0]
        self.close()
        handles = [handle for part in published.shared.parts for handle in part.buckets]
        on_gpus = all(isinstance(handle, DeviceHandle) for handle in handles)
        backend: Backend = "nccl" if on_gpus and all(worker.has_gpu for worker in workers) else "gloo"
        sender = Sender(require_ray().util.get_node_ip_address(), len(workers), backend, self._seconds)
        self._group = sender, tuple(workers)
        return sender

    def _end_group(self, sender: Sender) -> None:
        """Whoever is still in it hears that it is over."""
        if self._group is None or self._group[0] is not sender:
            return
        (_, workers), self._group = self._group, None
        for worker in workers:
            if not worker.is_lost:
                worker.actor.stop_receiving.remote(sender.meeting)
        sender.abort()

    def close(self) -> None:
        """May be used again."""
        if self._group is not None:
            self._end_group(self._group[0])


async def _map(published: Published, worker: RayWorker) -> bool:
    """Whether it has them now, or will not need any."""
    try:
        await worker.ask("update_weights", published.shared, published.version)
    except WorkerLost:
        return True
    except CannotMap as error:
        _log.warning("A worker of this host gets new weights as one of another host from now on: %s.", error)
        worker.maps = False
        return False
    return True


async def _store(published: Published, worker: RayWorker) -> None:
    try:
        await worker.ask("update_weights", await published.references(), published.version)
    except WorkerLost:
        return


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """As `asyncio.to_thread`, but nothing waits for a thread that hangs, not even the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(None)

    def run() -> None:
        found = None
        try:
            work()
        except Exception as error:  # handed to who waits
            found = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=run, name="agentloop-broadcast", daemon=True).start()
    return future
