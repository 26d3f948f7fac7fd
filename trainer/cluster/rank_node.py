"""Ranks of a learner on another node: an actor of Ray there has its rank processes.

    driver: NodeRanks ----- Ray -----> NodeActor: HostRanks ----- pipes -----> rank processes

Arguments of a call reach a node once, through the object store. The actor ends with the process of the run, and its
rank processes end with it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch

from agentloop.errors import UserError
from agentloop.trainer.cluster.network import hang_up, is_reachable, use_interface_of
from agentloop.trainer.cluster.process_group import Meeting
from agentloop.trainer.cluster.rank_host import HostRanks, Refusals
from agentloop.trainer.cluster.rank_process import Function
from agentloop.trainer.cluster.session import Node, require_ray
from agentloop.trainer.cluster.shared_arrays import Packed

_ALL_AT_ONCE = 1000
"""Calls that the actor works on at the same time: most of them wait."""
_REACH_SECONDS = 10.0
_ASK_SECONDS = 5.0
"""Between two questions whether a node is still there."""
_ANSWER_SECONDS = 45.0
"""In which a node that is there says so; Ray itself waits for more than a minute."""
_CLOSE_SECONDS = 30.0
_references: WeakKeyDictionary[Packed, Any] = WeakKeyDictionary()
"""What is in the object store, so that several nodes fetch one object."""


class NodeRanks:
    """`Ranks` on a node. Raises `UserError` through `ready` where they cannot be started there."""

    def __init__(
        self,
        node: Node,
        gpus: Sequence[str] | None,
        ranks: range,
        meeting: Meeting,
        on_end: Callable[[int, str], None],
    ) -> None:
        """`gpus` are those that the ranks see; None: all of the node."""
        ray = require_ray()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.node, self._ranks, self._address = node, ranks, meeting.address
        self._on_end = on_end
        self._closing = False
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        options = {"num_cpus": 0, "max_concurrency": _ALL_AT_ONCE, "scheduling_strategy": there}
        self._actor: Any = ray.remote(NodeActor).options(**options).remote()
        threads = os.environ.get("OMP_NUM_THREADS")
        self.ready = self._ask(self._actor.start.remote(node, gpus, ranks, meeting, torch.__version__, threads))
        """Set when all ranks are about to join the process group."""
        threading.Thread(target=self._watch, daemon=True).start()

    def send(self, function: Function, packed: Packed, *, apart: bool) -> Future[Refusals]:
        """See `Ranks.send`."""
        if packed not in _references:
            _references[packed] = require_ray().put(packed)
        return self._ask(self._actor.call.remote(function, _references[packed], apart))

    def find_lost(self) -> None:
        """See `Ranks.find_lost`."""
        ray = require_ray()
        try:
            ray.get(self._actor.ping.remote(), timeout=_ANSWER_SECONDS)
        except ray.exceptions.GetTimeoutError:
            self._lose(f"it answers nothing for {_ANSWER_SECONDS:g} s")
        except ray.exceptions.RayError as error:
            self._lose(_in_short(error))

    def say_where(self) -> None:
        """See `Ranks.say_where`."""
        self._actor.say_where.remote()

    def kill(self) -> None:
        """See `Ranks.kill`."""
        self._closing = True
        require_ray().kill(self._actor, no_restart=True)

    def close(self) -> None:
        """See `Ranks.close`."""
        if self._closing:
            return
        self._closing = True
        ray = require_ray()
        with suppress(ray.exceptions.RayError):  # it has ended already
            ray.get(self._actor.close.remote(), timeout=_CLOSE_SECONDS)
        self.kill()

    def _ask(self, reference: Any) -> Future[Refusals]:
        """The answer of the actor, or what it raised; `ConnectionError` where ranks ended instead."""
        ray = require_ray()
        answer: Future[Refusals] = Future()

        def take(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                answer.set_result(done.result())
            elif isinstance(error, ray.exceptions.RayTaskError):
                answer.set_exception(error.cause)
            else:
                answer.set_exception(
                    ConnectionError(f"the learner's ranks on node {self.node.name} have ended: {error}")
                )

        reference.future().add_done_callback(take)
        return answer

    def _watch(self) -> None:
        """Hears which rank has ended, until the actor itself does."""
        ray = require_ray()
        ended = self._actor.ended.remote()
        while not self._closing:
            if not ray.wait([ended], timeout=_ASK_SECONDS)[0]:
                self.find_lost()
                continue
            try:
                rank, how = ray.get(ended)
            except ray.exceptions.RayError as error:
                self._lose(_in_short(error))
                return
            ended = self._actor.ended.remote()
            if not self._closing:
                self._on_end(rank, f"on node {self.node.name} {how}")

    def _lose(self, cause: str) -> None:
        if self._closing:
            return
        if self.node.address != self._address:
            hang_up(self.node.address)
        self._on_end(self._ranks[0], f"was lost with its node {self.node.name} ({cause})")


class NodeActor:
    """In a process of its own on a node."""

    def __init__(self) -> None:
        self._ended: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self._ranks: HostRanks | None = None

    async def start(
        self,
        node: Node,
        gpus: Sequence[str] | None,
        ranks: range,
        meeting: Meeting,
        version: str,
        threads: str | None,
    ) -> Refusals:
        """Returns when all ranks are about to join. Raises `UserError` where this node cannot have them."""
        _see(gpus, threads)
        _check(node, len(ranks), meeting, version)
        use_interface_of(node.address)
        loop = asyncio.get_running_loop()

        def on_end(rank: int, how: str) -> None:
            loop.call_soon_threadsafe(self._ended.put_nowait, (rank, how))

        self._ranks = HostRanks(ranks, meeting, on_end)
        return await asyncio.wrap_future(self._ranks.ready)

    async def call(self, function: Function, packed: Packed, apart: bool) -> Refusals:
        assert self._ranks is not None, "started"
        return await asyncio.wrap_future(self._ranks.send(function, packed, apart=apart))

    async def ended(self) -> tuple[int, str]:
        """The next rank that ends by itself, and how."""
        return await self._ended.get()

    async def ping(self) -> None:
        """Answers where the node does."""

    async def say_where(self) -> None:
        assert self._ranks is not None, "started"
        self._ranks.say_where()

    async def close(self) -> None:
        if self._ranks is not None:
            await asyncio.to_thread(self._ranks.close)


def _see(gpus: Sequence[str] | None, threads: str | None) -> None:
    """What Ray set for an actor that it gave nothing is not meant for rank processes."""
    devices = None if gpus is None else ",".join(gpus)
    for name, value in (("CUDA_VISIBLE_DEVICES", devices), ("OMP_NUM_THREADS", threads)):
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _check(node: Node, ranks: int, meeting: Meeting, version: str) -> None:
    if torch.__version__ != version:
        raise UserError(
            f"The run has torch {version}, node {node.name} has {torch.__version__}: install the same on all nodes of "
            "the learner."
        )
    if meeting.device == "cuda" and ranks > torch.cuda.device_count():
        raise UserError(
            f"{ranks} ranks of the learner are to be on node {node.name}, but torch sees {torch.cuda.device_count()} "
            "CUDA devices there. Raise learner.nodes, or lower learner.ranks."
        )
    if not is_reachable(meeting.address, meeting.port, _REACH_SECONDS):
        raise UserError(
            f"Node {node.name} cannot reach the learner's first rank at {meeting.address}:{meeting.port}. The ranks of "
            "a learner talk to each other on any port: open all of them between the nodes of the cluster."
        )


def _in_short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' '.join(lines[0].split())[:200]}" if lines else type(error).__name__
