"""Scripted engine that takes the time of a batching engine (`SimulatedEngine`)."""

from __future__ import annotations

import asyncio
import heapq
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import FinishReason, Generation, SamplingParams
from agentloop.engines.testing.scripted import ScriptedEngine

if TYPE_CHECKING:
    from agentloop.weights.handle import WeightHandle


@dataclass(slots=True, eq=False)
class _Request:
    """A turn in flight."""

    start: float
    """Tokens that a request running from the start had when this one began."""
    num_tokens: int
    done: asyncio.Future[None]
    versions: list[tuple[int, int]] = field(default_factory=list)
    """(tokens, version): tokens sampled when the weights of that version were replaced, or when the turn ended."""


class SimulatedEngine(ScriptedEngine):
    """Engine with continuous batching on the clock of the event loop, usually a `VirtualClockLoop`.

    A decoding step gives each of n running requests one token and takes `step_seconds + n * request_seconds`: reading
    the weights, and each request's share of arithmetic and cache. At most `max_running` requests run, others wait in
    order of arrival. New weights stop sampling for `update_seconds`. `script`, `logprob` and `max_model_len` are those
    of the scripted engine.
    """

    def __init__(
        self,
        script: Any,
        *,
        step_seconds: float = 0.01,
        request_seconds: float = 0.0001,
        max_running: int = 256,
        update_seconds: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(script, **options)
        self._step_seconds = step_seconds
        self._request_seconds = request_seconds
        self._max_running = max_running
        self._update_seconds = update_seconds
        self._served = 0.0
        """Tokens of a request that runs from the start."""
        self._served_at = 0.0
        self._num_running = 0
        self._finishing: list[tuple[float, int, _Request]] = []
        """A heap of the running requests, by the value of `_served` at which they end."""
        self._waiting: deque[_Request] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = self._asleep = False
        self._number = 0
        self.num_tokens = 0
        """Tokens sampled by ended turns."""
        self.history: list[tuple[float, int]] = []
        """(seconds, running requests) whenever that number changed."""

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        """Sample a turn. Cancellation takes the request out of the batch."""
        said = await super().generate(prompt, params, trajectory_id=trajectory_id, images=images)
        request = _Request(0.0, len(said.ids), asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._advance()
        try:
            await request.done
        except asyncio.CancelledError:
            self._remove(request)
            raise
        self.num_tokens += len(said.ids)
        reason = FinishReason.ABORT if self._closed else said.finish_reason
        return Generation(said.ids, said.logprobs, self._versions(request), reason)

    async def pause(self) -> None:
        self._advance()
        self._paused = True
        self._advance()

    async def resume(self) -> None:
        self._advance()
        self._paused = False
        self._advance()

    async def sleep(self, *, keep_weights: bool = True) -> None:
        self._advance()
        self._asleep = True
        self._advance()

    async def wake(self) -> None:
        self._advance()
        self._asleep = False
        self._advance()

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        was_paused = self._paused
        await self.pause()
        await asyncio.sleep(self._update_seconds)
        for _, _, request in self._finishing:
            request.versions.append((int(self._served - request.start), self.policy_version))
        self.policy_version = version
        if not was_paused:
            await self.resume()

    async def close(self) -> None:
        await super().close()
        for request in [*self._waiting, *(request for _, _, request in self._finishing)]:
            if not request.done.done():
                request.done.set_result(None)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of a full batch, the maximum."""
        return self._max_running / (self._step_seconds + self._max_running * self._request_seconds)

    def _advance(self) -> None:
        """Advance to the present: add tokens, end complete requests, start waiting ones, and set the timer."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        stands = self._paused or self._asleep
        if self._num_running and not stands:
            self._served += (now - self._served_at) / self._seconds_per_token()
        self._served_at = now
        before = self._num_running
        while self._finishing and self._finishing[0][0] <= self._served + 1e-6:
            _, _, request = heapq.heappop(self._finishing)
            self._num_running -= 1
            request.versions.append((request.num_tokens, self.policy_version))
            if not request.done.done():
                request.done.set_result(None)
        while self._waiting and self._num_running < self._max_running and not stands:
            request = self._waiting.popleft()
            request.start = self._served
            self._number += 1
            heapq.heappush(self._finishing, (self._served + request.num_tokens, self._number, request))
            self._num_running += 1
        if self._num_running != before:
            self.history.append((now, self._num_running))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._finishing and not stands:
            left = max(self._finishing[0][0] - self._served, 0.0)
            self._timer = loop.call_later(left * self._seconds_per_token(), self._advance)

    def _seconds_per_token(self) -> float:
        return self._step_seconds + self._num_running * self._request_seconds

    def _remove(self, request: _Request) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
            return
        self._advance()
        kept = [entry for entry in self._finishing if entry[2] is not request]
        if len(kept) < len(self._finishing):
            heapq.heapify(kept)
            self._finishing = kept
            self._num_running -= 1
            self.history.append((self._served_at, self._num_running))
        self._advance()

    def _versions(self, request: _Request) -> array[int]:
        versions: list[int] = []
        for num_tokens, version in request.versions:
            versions += [version] * (num_tokens - len(versions))
        return array("i", versions + [self.policy_version] * (request.num_tokens - len(versions)))  # closed: cut
