"""`WeightDistributor`: sends published weights to workers, to each by the fastest transport that reaches it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from agentloop.config.workers import WorkersConfig
from agentloop.trainer.cluster.session import require_ray
from agentloop.trainer.workers.ray.object_weights import Published
from agentloop.trainer.workers.ray.worker import RayWorker, WorkerLost
from agentloop.weights.broadcast import Backend, BroadcastFailed, BroadcastWeights, Sender
from agentloop.weights.buckets import DeviceHandle
from agentloop.weights.shelf import CannotMap

_log = logging.getLogger(__name__)
_ATTEMPTS = 2
"""Number of failed broadcasts without a lost worker after which this transport is given up."""


class WeightDistributor:
    """Sends weights to workers by shared memory, broadcast or Ray objects.

    Workers on this host map shared memory. The others get a broadcast together, and keep sampling until it has arrived.
    Workers that it does not reach get Ray objects. `WorkersConfig.weights` can disable the first two.
    """

    def __init__(self, config: WorkersConfig) -> None:
        self._maps = config.weights == "auto"
        self._broadcasts = config.weights != "objects"
        self._seconds = config.hang_seconds
        self._group: tuple[Sender, tuple[RayWorker, ...]] | None = None
        """Broadcast group and its workers, kept between updates while its members are the same."""
        self._count: Counter[str] = Counter()

    async def bring(self, published: Published, workers: Sequence[RayWorker]) -> None:
        """Update all of these workers concurrently. A worker that is lost meanwhile is skipped."""
        near = [worker for worker in workers if self._maps and worker.maps and worker.is_of_this_node]
        far = [worker for worker in workers if worker not in near]
        mapped, _ = await asyncio.gather(
            asyncio.gather(*(_map(published, worker) for worker in near)), self._send(published, far)
        )
        self._count["mapped"] += sum(has and not worker.is_lost for worker, has in zip(near, mapped, strict=True))
        await self._send(published, [worker for worker, has in zip(near, mapped, strict=True) if not has])

    @property
    def broadcast_group(self) -> tuple[RayWorker, ...]:
        """Workers in the current broadcast group; empty without a group."""
        return self._group[1] if self._group is not None else ()

    def metrics(self) -> dict[str, float]:
        """Return the number of weight updates of workers, by transport."""
        return {f"workers/weights_{way}": float(count) for way, count in self._count.items() if count}

    async def _send(self, published: Published, workers: Sequence[RayWorker]) -> None:
        workers = [worker for worker in workers if not worker.is_lost]
        attempts = _ATTEMPTS if self._broadcasts else 0
        while workers and attempts:
            left = await self._broadcast(published, workers)
            attempts -= not any(worker.is_lost for worker in workers)
            workers = [worker for worker in left if not worker.is_lost]
        if workers and self._broadcasts:
            _log.warning("New weights are sent to workers on other hosts through Ray's object store from now on.")
            self._broadcasts = False
        await asyncio.gather(*(_store(published, worker) for worker in workers))
        self._count["stored"] += len(workers)

    async def _broadcast(self, published: Published, workers: Sequence[RayWorker]) -> list[RayWorker]:
        """Broadcast the weights; return the workers that it did not reach."""
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
        weights = BroadcastWeights(sender.rendezvous, rank, worker.address, published.shared.places)
        try:
            await worker.update_weights(weights, published.version)
        except (BroadcastFailed, WorkerLost) as error:
            if not worker.is_lost:
                _log.warning("Sending the weights again: %s", error)
            self._end_group(sender)  # the other members would wait for this one
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
        """End the group on all members."""
        if self._group is None or self._group[0] is not sender:
            return
        (_, workers), self._group = self._group, None
        for worker in workers:
            worker.stop_receiving(sender.rendezvous)
        sender.abort()

    def close(self) -> None:
        """End the group. The next broadcast creates a new one."""
        if self._group is not None:
            self._end_group(self._group[0])


async def _map(published: Published, worker: RayWorker) -> bool:
    """Map the weights in a worker; return whether it needs no other transport, because it has them or is lost."""
    try:
        await worker.update_weights(published.shared, published.version)
    except WorkerLost:
        return True
    except CannotMap as error:
        _log.warning(
            "A worker on this host cannot map shared memory, and gets new weights like a worker on another host: %s.",
            error,
        )
        worker.maps = False
        return False
    return True


async def _store(published: Published, worker: RayWorker) -> None:
    try:
        await worker.update_weights(await published.objects(), published.version)
    except WorkerLost:
        return


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run `work` like `asyncio.to_thread`, but in a daemon thread, so that the process can exit if it hangs."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(None)

    def run() -> None:
        found = None
        try:
            work()
        except Exception as error:  # raised by the future
            found = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=run, name="agentloop-broadcast", daemon=True).start()
    return future
