"""`RayWorker`: one actor, as the run sees it. It lives once; whoever has it replaces it when it is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentloop.config.workers import WorkersConfig
from agentloop.errors import AgentLoopError
from agentloop.trainer.workers.concurrency import ConcurrencyLimit
from agentloop.trainer.workers.ray.open_request import OpenRequest
from agentloop.trainer.workers.ray.replica import MakeReplica, Replica, Report, Started
from agentloop.types.trajectory import Trajectory

REPORT_SECONDS = 1.0
"""Between two questions how a worker is doing. Its new turns come with the answer: one message for all of them."""
_CLOSE_SECONDS = 30.0
_ALL_AT_ONCE = 10_000
"""Calls that an actor works on at the same time."""


class WorkerLost(Exception):
    """An actor that will not answer any more. `kind`: died, hung or start."""

    def __init__(self, kind: str, cause: str) -> None:
        super().__init__(cause)
        self.kind = kind


class RayWorker:
    """`gpus` of the actor; `stall_seconds` without any progress are too long. While others have to sample its turns,
    it is told `who_helps`: actors, and how many trajectories each has room for."""

    def __init__(
        self,
        make: MakeReplica,
        config: WorkersConfig,
        *,
        gpus: float,
        stall_seconds: float,
        who_helps: Callable[[RayWorker], Mapping[Any, int]],
    ) -> None:
        import ray

        self.orders: set[OpenRequest] = set()
        """That it plays."""
        self.limit: ConcurrencyLimit | None = None
        """None until it is ready."""
        self.metrics: dict[str, float] = {}
        self.guests = 0
        """Trajectories of other workers that it has."""
        self._who_helps = who_helps
        self._drains_until: float | None = None
        self._config = config
        self._stall_seconds = stall_seconds
        self._started: Started | None = None
        self._lost = asyncio.Event()
        self._cause = ""
        self._num_ended = 0
        self.maps = True
        """It can map the weights of this process, if it is on this node; until it turns out that it cannot."""
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
        """Episodes that it was given and that did not end."""
        return sum(len(order.missing) for order in self.orders)

    @property
    def node(self) -> str | None:
        """Ray's id of its node, once it has started."""
        return self._started.node if self._started else None

    def drain(self) -> None:
        """From now on others sample its turns, as far as they have room. `watch` returns when its episodes have ended,
        or have not within `workers.drain_seconds`."""
        if not self.is_draining:
            self._drains_until = asyncio.get_running_loop().time() + self._config.drain_seconds
            self._ask_for_help()

    def dismiss(self, lost: RayWorker) -> None:
        """Forget the trajectories of a worker that is no more."""
        if not self.is_lost and lost._started is not None:
            self.actor.dismiss.remote(lost._started.actor)

    def _ask_for_help(self) -> None:
        self.actor.offer.remote(self._who_helps(self), is_draining=self.is_draining)

    async def start(self) -> Started:
        """Load the model. Raises `UserError`, and `WorkerLost` where the actor dies or takes too long."""
        try:
            started: Started = await asyncio.wait_for(
                self._ask(self.actor.start.remote()), timeout=self._config.start_seconds
            )
        except TimeoutError as error:
            raise WorkerLost(
                "start",
                f"not ready after workers.start_seconds={self._config.start_seconds:g}: Ray found no room for it, or "
                "its model loads longer than that",
            ) from error
        self._started = started
        return started

    async def play(self, order: OpenRequest) -> None:
        """Give it one of `orders`; what it plays goes there. Returns when it is over, in whatever way."""
        if order not in self.orders:  # aborted since
            return
        try:
            async for trajectory in self._stream(order):
                if self._started is not None:
                    trajectory.metrics["worker_pid"] = float(self._started.pid)
                order.add(trajectory)
                self._num_ended += 1
        except WorkerLost:
            return  # `watch` says so, and the order is taken back
        except Exception as error:  # what an episode raised in the actor is raised where it was ordered
            order.fail(error)
        self.orders.discard(order)

    async def _stream(self, order: OpenRequest) -> AsyncIterator[Trajectory]:
        stream = self.actor.play.options(num_returns="streaming").remote(order.rest(), order.turns)
        while True:
            try:
                reference = await self._ask(anext(stream))
            except StopAsyncIteration:
                return
            yield await self._ask(reference)

    def abort(self, order: OpenRequest) -> None:
        """Nobody waits for it any more."""
        self.orders.discard(order)
        if not self.is_lost:
            self.actor.abort.remote(order.order.group_id)

    def check(self) -> None:
        """Raises `WorkerLost` where it is."""
        if self.is_lost:
            raise WorkerLost("died", self._cause)

    async def ask(self, method: str, *args: Any) -> Any:
        """What a method of `Replica` returns. Raises what it raises, and `WorkerLost`."""
        return await self._ask(getattr(self.actor, method).remote(*args))

    async def pause(self) -> None:
        await self._ask(self.actor.pause.remote())

    async def resume(self) -> None:
        await self._ask(self.actor.resume.remote())

    async def sleep(self) -> None:
        await self._ask(self.actor.sleep.remote())

    async def wake(self) -> None:
        await self._ask(self.actor.wake.remote())

    async def watch(self) -> None:
        """Ask again and again how it is doing. Returns when it is drained; else ends only by `WorkerLost`."""
        clock = asyncio.get_running_loop().time
        progress, since = -1, clock()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), REPORT_SECONDS)
                raise WorkerLost("died", self._cause)
            has_ended = not self.orders  # before the report, which then has all that it did
            report = await self._report()
            self._take(report)
            if self._drains_until is not None:
                is_empty = has_ended and not self.orders and not report.guest_turns
                if is_empty or clock() > self._drains_until:
                    return
            if self.is_draining or report.needs_help:
                self._ask_for_help()
            if report.stands_still > self._config.hang_seconds:
                await self._raise_hung(f"its event loop stands still since {report.stands_still:.0f} s")
            if report.progress != progress or not self.in_flight:
                progress, since = report.progress, clock()
            elif clock() - since > self._stall_seconds:
                await self._raise_hung(f"{self.in_flight} episodes run, and nothing ended in {self._stall_seconds:g} s")

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
                f"process {self.pid} answered nothing for workers.hang_seconds={seconds:g}: it is stopped, or its node "
                f"cannot be reached ({self.in_flight} episodes were running)",
            ) from error

    def _take(self, report: Report) -> None:
        known = {order.order.group_id: order for order in self.orders}
        for turn in report.turns:
            if (order := known.get(turn.trajectory_id.rpartition("-")[0])) is not None:
                order.remember(turn)
        self.metrics, self.guests = report.metrics, report.guests
        if self.limit is not None:
            ended, self._num_ended = self._num_ended, 0
            self.limit.observe(
                in_flight=self.in_flight + self.guests, ended=ended, resident_tokens=report.resident_tokens
            )

    @property
    def pid(self) -> int | None:
        """Of the actor, once it has started."""
        return self._started.pid if self._started else None

    async def close(self) -> None:
        """Let it release what it has, then end it."""
        if not self.is_lost:
            with suppress(WorkerLost, TimeoutError):
                await asyncio.wait_for(self._ask(self.actor.close.remote()), _CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        import ray

        self._lost.set()
        ray.kill(self.actor, no_restart=True)
        # A process that is stopped does not hear that it is to end.
        if self._started is not None and self.is_of_this_node:
            _end(self._started.pid)

    @property
    def has_gpu(self) -> bool:
        """Ray gave it one, or a part."""
        return self._started is not None and self._started.has_gpu

    @property
    def is_of_this_node(self) -> bool:
        import ray

        assert self._started is not None, "started"
        return self._started.node == str(ray.get_runtime_context().get_node_id())

    async def _ask(self, reference: Any) -> Any:
        """The answer of the actor. Raises what its method raised, and `WorkerLost` where there will be none."""
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
    """What was raised in the actor; agentloop's own errors say all that there is to say."""
    cause = error.cause
    return cause if isinstance(cause, AgentLoopError) else error


def _in_short(error: Exception) -> str:
    """What Ray says of an actor's end, without its ids and its guesses."""
    _, _, exit_ = str(error).partition("Worker exit type:")
    # What was raised while the actor was made stands in the last line, behind a traceback.
    words = exit_.partition("Some common causes")[0] or str(error).strip().splitlines()[-1]
    return f"{type(error).__name__}: {' '.join(words.split())[:300]}"


def _end(pid: int) -> None:
    """The actor with this id on this machine, and no process that got its id since."""
    with suppress(OSError):
        if b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
