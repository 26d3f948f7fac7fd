"""`RayWorker`: the handle of one actor in the run's process; the pool replaces it when the actor is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentloop.config.workers import WorkersConfig
from agentloop.errors import AgentLoopError
from agentloop.process.log_once import pass_on
from agentloop.trainer.cluster.session import this_node_is_alive
from agentloop.trainer.workers.concurrency import ConcurrencyLimit
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.ray.open_request import OpenRequest
from agentloop.trainer.workers.ray.replica import MakeReplica, Replica, Report, Started
from agentloop.types.trajectory import Trajectory
from agentloop.weights.broadcast import Rendezvous
from agentloop.weights.handle import WeightHandle

REPORT_SECONDS = 1.0
"""Seconds between two reports of a worker, which also contain its new turns."""
_CLOSE_SECONDS = 30.0
_ALL_AT_ONCE = 10_000
"""Number of concurrent calls of an actor."""


class WorkerLost(Exception):
    """The actor will not answer any more; `kind` is died, hung or start."""

    def __init__(self, kind: str, cause: str) -> None:
        super().__init__(cause)
        self.kind = kind


class RayWorker:
    """An actor with `gpus` GPUs; it counts as hung without progress for `stall_seconds` although episodes run."""

    def __init__(self, make: MakeReplica, config: WorkersConfig, *, gpus: float, stall_seconds: float) -> None:
        import ray

        self.requests: set[OpenRequest] = set()
        """Requests that it plays."""
        self.limit: ConcurrencyLimit | None = None
        """Facts about the actor; None until it is ready."""
        self.metrics: dict[str, float] = {}
        self._drains_until: float | None = None
        self._config = config
        self._stall_seconds = stall_seconds
        self._started: Started | None = None
        self._lost = asyncio.Event()
        self._cause = ""
        self._num_ended = 0
        self.maps = True
        """Whether to map the weights of this process, if it is on this node; False once that has failed."""
        remote: Any = ray.remote
        actor = remote(concurrency_groups={"watch": 1})(Replica)
        self.actor = actor.options(
            num_cpus=config.cpus, num_gpus=gpus, max_concurrency=_ALL_AT_ONCE, scheduling_strategy="SPREAD"
        ).remote(make)

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    @property
    def is_draining(self) -> bool:
        return self._drains_until is not None

    @property
    def in_flight(self) -> int:
        """Number of episodes that it plays."""
        return sum(len(request.missing) for request in self.requests)

    @property
    def node(self) -> str | None:
        """Ray id of its node, once it has started."""
        return self._started.node if self._started else None

    def drain(self) -> None:
        """Let `watch` return when all episodes have ended, or after `workers.drain_seconds`."""
        if not self.is_draining:
            self._drains_until = asyncio.get_running_loop().time() + self._config.drain_seconds

    async def start(self) -> Started:
        """Load the model. Raises `UserError`, and `WorkerLost` if the actor dies or takes too long."""
        try:
            started: Started = await asyncio.wait_for(
                self._ask(self.actor.start.remote()), timeout=self._config.start_seconds
            )
        except TimeoutError as error:
            raise WorkerLost(
                "start",
                f"not ready after workers.start_seconds={self._config.start_seconds:g}: Ray found no room for it, or "
                "its model takes longer to load",
            ) from error
        self._started = started
        return started

    async def play(self, request: OpenRequest) -> None:
        """Play one of `requests` and add its trajectories to it. Returns when the request has ended or failed."""
        if request not in self.requests:  # it was aborted
            return
        try:
            async for trajectory in self._stream(request):
                if self._started is not None:
                    trajectory.metrics["worker_pid"] = float(self._started.pid)
                request.add(trajectory)
                self._num_ended += 1
        except WorkerLost:
            return  # `watch` raises it too, and the pool takes the request back
        except Exception as error:  # an episode raised it in the actor; pass it to the caller of the pool
            request.fail(error)
        self.requests.discard(request)

    async def _stream(self, request: OpenRequest) -> AsyncIterator[Trajectory]:
        stream = self.actor.play.options(num_returns="streaming").remote(request.rest(), request.turns)
        while True:
            try:
                reference = await self._ask(anext(stream))
            except StopAsyncIteration:
                return
            yield await self._ask(reference)

    def abort(self, request: OpenRequest) -> None:
        """Abort a request."""
        self.requests.discard(request)
        if not self.is_lost:
            self.actor.abort.remote(request.request.group_id)

    def stop_receiving(self, rendezvous: Rendezvous) -> None:
        """Make it leave a broadcast that other members have left."""
        if not self.is_lost:
            self.actor.stop_receiving.remote(rendezvous)

    def check(self) -> None:
        """Raise `WorkerLost` if the worker is lost."""
        if self.is_lost:
            raise WorkerLost("died", self._cause)

    async def update_weights(self, weights: WeightHandle, version: int) -> None:
        """Take new weights. Raises `CannotMap`, `BroadcastFailed` and `WorkerLost`."""
        await self._ask(self.actor.update_weights.remote(weights, version))

    async def change(self, change: Callable[[LocalWorkers], Awaitable[None]]) -> None:
        """Call a method of the worker in the actor, such as `LocalWorkers.pause`. Raises `WorkerLost`."""
        await self._ask(self.actor.change.remote(change))

    async def watch(self) -> None:
        """Poll reports until the worker is drained. Raises `WorkerLost`."""
        clock = asyncio.get_running_loop().time
        progress, since = -1, clock()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), REPORT_SECONDS)
                raise WorkerLost("died", self._cause)
            had_ended = not self.requests  # if so, the report is complete
            report = await self._report()
            self._take(report)
            if self._drains_until is not None and (had_ended or clock() > self._drains_until):
                return
            if report.stands_still > self._config.hang_seconds:
                await self._raise_hung(f"its event loop has been blocked for {report.stands_still:.0f} s")
            if report.progress != progress or not self.in_flight:
                progress, since = report.progress, clock()
            elif clock() - since > self._stall_seconds:
                await self._raise_hung(f"{self.in_flight} episodes run, but nothing ended in {self._stall_seconds:g} s")

    async def _raise_hung(self, how: str) -> None:
        report = await self._report(explain=True)
        raise WorkerLost("hung", f"{how}: {report.doing}")

    async def _report(self, explain: bool = False) -> Report:
        question = self.actor.report.options(concurrency_group="watch").remote(explain)
        seconds = self._config.hang_seconds
        try:
            return await asyncio.wait_for(self._ask(question), seconds)
        except TimeoutError as error:
            raise WorkerLost(
                "hung",
                f"process {self.pid} did not answer for workers.hang_seconds={seconds:g}: it is stopped, or its node "
                f"is unreachable ({self.in_flight} episodes were running)",
            ) from error

    def _take(self, report: Report) -> None:
        known = {request.request.group_id: request for request in self.requests}
        for turn in report.turns:
            if (request := known.get(turn.episode.group_id)) is not None:
                request.remember(turn)
        self.metrics = report.metrics
        if not self._config.show_logs:
            for text in report.warnings:
                pass_on(text)
        if self.limit is not None:
            ended, self._num_ended = self._num_ended, 0
            self.limit.observe(in_flight=self.in_flight, ended=ended, resident_tokens=report.resident_tokens)

    @property
    def pid(self) -> int | None:
        """Process id of the actor, once it has started."""
        return self._started.pid if self._started else None

    async def close(self) -> None:
        """Close the worker in the actor, then end the process."""
        if not self.is_lost and await asyncio.to_thread(this_node_is_alive):
            with suppress(WorkerLost, TimeoutError):
                await asyncio.wait_for(self._ask(self.actor.close.remote()), _CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the process."""
        import ray

        self._lost.set()
        ray.kill(self.actor, no_restart=True)
        # Ray cannot kill a stopped process.
        if self._started is not None and self.is_of_this_node:
            _end(self._started.pid)

    @property
    def address(self) -> str:
        """IP address of its node."""
        assert self._started is not None, "started"
        return self._started.address

    @property
    def has_gpu(self) -> bool:
        """Whether it has a GPU or a fraction of one."""
        return self._started is not None and self._started.has_gpu

    @property
    def is_of_this_node(self) -> bool:
        import ray

        assert self._started is not None, "started"
        return self._started.node == str(ray.get_runtime_context().get_node_id())

    async def _ask(self, reference: Any) -> Any:
        """Return the answer of the actor or raise its error. Raises `WorkerLost` if the actor is gone."""
        import ray

        try:
            return await reference
        except ray.exceptions.RayTaskError as error:
            raise _cause_of(error) from error
        except ray.exceptions.RayError as error:
            self._cause = _in_short(error)
            self._lost.set()
            raise WorkerLost("died", self._cause) from error


def _cause_of(error: Any) -> Exception:
    """Return the original error of the actor if it is agentloop's own, which needs no traceback."""
    cause = error.cause
    return cause if isinstance(cause, AgentLoopError) else error


def _in_short(error: Exception) -> str:
    """Return Ray's message about the death of an actor, without ids and guesses."""
    _, _, exit_ = str(error).partition("Worker exit type:")
    # An error from the actor's constructor is in the last line, after a traceback.
    words = exit_.partition("Some common causes")[0] or str(error).strip().splitlines()[-1]
    return f"{type(error).__name__}: {' '.join(words.split())[:300].rstrip('.')}"


def _end(pid: int) -> None:
    """Kill the actor with this process id, but not another process that has reused the id."""
    with suppress(OSError):
        if b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
