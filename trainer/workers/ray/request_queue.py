"""`RequestQueue`: gives the open requests of a run to the workers that have room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentloop.trainer.workers.lengths import LengthMemory
from agentloop.trainer.workers.ray.open_request import OpenRequest
from agentloop.trainer.workers.ray.slots import Slot, for_request

if TYPE_CHECKING:
    from agentloop.trainer.workers.ray.worker import RayWorker
    from agentloop.types.requests import Group, RolloutRequest
    from agentloop.types.trajectory import Trajectory


class RequestQueue:
    """Requests that wait for room on a worker of `slots`, which may grow.

    All episodes of a group go to one worker, which caches their prompt. First go requests of lost workers, then those
    that are expected to take longest. A request that has lost more than `max_replays` workers ends with failures.
    """

    def __init__(self, slots: Sequence[Slot], max_replays: int) -> None:
        self._slots = slots
        self._max_replays = max_replays
        self._waiting: list[OpenRequest] = []
        self._playing: set[asyncio.Task[None]] = set()
        self._lengths = LengthMemory()
        self.failure: Exception | None = None
        """The error that every request gets, once no worker is left."""

    @property
    def workers(self) -> list[RayWorker]:
        """The workers that are ready."""
        return [slot.worker for slot in self._slots if slot.worker is not None]

    def room(self) -> int:
        """Return the number of further episodes that could start now, including room on restarting workers."""
        free = sum(slot.room for slot in self._slots)
        return max(free - sum(len(request.missing) for request in self._waiting), 0)

    async def play(self, request: RolloutRequest, on_trajectory: Callable[[Trajectory], None] | None) -> Group:
        """Wait for a worker with room, and return the group that it has played. Raises `failure`."""
        self.raise_failure()
        opened = OpenRequest(request, on_trajectory)
        self._waiting.append(opened)
        self.give_out()
        try:
            group = await opened.answer
        except asyncio.CancelledError:
            self._abort(opened)
            raise
        self._lengths.learn(request, opened.longest)
        return group

    def _abort(self, opened: OpenRequest) -> None:
        if opened in self._waiting:
            self._waiting.remove(opened)
        for worker in self.workers:
            if opened in worker.requests:
                worker.abort(opened)
        self.give_out()

    def give_out(self) -> None:
        """Give requests to the workers with most room."""
        self._waiting = [request for request in self._waiting if not request.answer.done()]
        self._waiting.sort(key=lambda each: (each.num_lost, self._lengths.expect(each.request)), reverse=True)
        while self._waiting:
            slot = for_request(self._slots, len(self._waiting[0].missing))
            if slot is None or slot.worker is None:
                return
            self._play_on(slot.worker, self._waiting.pop(0))

    def _play_on(self, worker: RayWorker, request: OpenRequest) -> None:
        worker.requests.add(request)  # now, because its task starts later
        task = asyncio.create_task(worker.play(request))
        self._playing.add(task)
        task.add_done_callback(self._played)

    def _played(self, task: asyncio.Task[None]) -> None:
        self._playing.discard(task)
        if not task.cancelled():
            self.give_out()

    def take_back(self, worker: RayWorker, lost: str) -> None:
        """Let other workers play the requests of a worker that is gone; `lost` is why."""
        for request in worker.requests:
            if request.answer.done():
                continue
            if request.num_lost > self._max_replays:
                request.give_up(lost)
            else:
                self._waiting.append(request)
        worker.requests.clear()
        self.give_out()

    def fail(self, error: Exception) -> None:
        """Answer all requests, and all later ones, with an error, because no worker is left."""
        self.failure = error
        playing = [request for worker in self.workers for request in worker.requests]
        for request in [*self._waiting, *playing]:
            request.fail(error)
        self._waiting.clear()

    def raise_failure(self) -> None:
        """Raise `failure`, if there is one."""
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Cancel what workers play."""
        playing = list(self._playing)
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
