"""The further ranks of a learner that this process is rank 0 of: processes that do as this one does, on this host and,
where `learner.nodes` says so, on others.

    driver (rank 0)                       rank processes 1 .. n-1
    run(local, function, *args)  -------> function(objects, *args)     all meet in collectives of torch.distributed
          local()                                 |
          <------------- done --------------------+

Arguments are written to the shared memory of each host once; a rank reads of a batch what is its share. A rank that
dies, or raises what is no `UserError`, ends the others: none of them could go on.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from agentloop.errors import UserError
from agentloop.trainer.cluster import process_group
from agentloop.trainer.cluster.learner_host import Seat
from agentloop.trainer.cluster.network import hang_up, use_interface_of
from agentloop.trainer.cluster.process_group import Meeting
from agentloop.trainer.cluster.rank_host import HostRanks, Ranks
from agentloop.trainer.cluster.shared_arrays import pack

T = TypeVar("T")
_log = logging.getLogger(__name__)

PATIENCE = 900.0
"""Seconds after which a call is suspected to hang; most of them take seconds."""

_REASON = 30.0
"""Seconds in which the rank that broke a collective is looked for, before rank 0 takes the blame."""
_SETTLING = 0.5
"""Seconds from the first failure to the others that it brings about."""


class RankProcesses:
    """Ranks 1 to `ranks` - 1, on `nodes` nodes of a Ray cluster in equal parts, this one first. Raises `UserError`
    where there are fewer nodes or devices."""

    def __init__(self, ranks: int, device: str, nodes: int = 1, seats: Sequence[Seat] = ()) -> None:
        _check(ranks, device, nodes)
        self.ranks, self.device, self.nodes = ranks, device, nodes
        self.users = 0
        """Learners that run in these processes."""
        self._failures: dict[int, str] = {}
        self._failed = threading.Event()
        self._closing = False
        self._lock = threading.Lock()
        self._hosts: list[Ranks] = []
        per_host = ranks // nodes
        self._has_joined = False
        if nodes == 1:
            store = process_group.listen(ranks)
            meeting = Meeting("127.0.0.1", store.port, ranks, per_host, device)
            others: list[Any] = []
        else:
            from agentloop.trainer.cluster.rank_nodes import choose

            (here, _), *others = choose(nodes, per_host, device, seats)
            store = process_group.listen(ranks, here.address)
            meeting = Meeting(here.address, store.port, ranks, per_host, device)
            use_interface_of(here.address)
        self._meeting = meeting
        self._here = HostRanks(range(1, per_host), meeting, self._on_end)
        self._hosts.append(self._here)
        ready = [self._here.ready]
        for number, (node, gpus) in enumerate(others, start=1):
            from agentloop.trainer.cluster.rank_node import NodeRanks

            theirs = range(number * per_host, (number + 1) * per_host)
            there = NodeRanks(node, gpus, theirs, meeting, self._on_end)
            self._hosts.append(there)
            ready.append(there.ready)
        try:
            self._wait(ready)
            self._join(store)
        except BaseException:
            self._kill()
            raise

    def _join(self, store: TCPStore) -> None:
        try:
            process_group.join(0, self._meeting, store)
        except RuntimeError as error:
            if not self._has_reason():
                raise
            raise UserError(self._message()) from error
        self._has_joined = True

    @property
    def is_alive(self) -> bool:
        return not self._failed.is_set() and not self._closing

    @property
    def pids(self) -> dict[int, int]:
        """Of the process of each rank of this host but this one."""
        return self._here.pids

    def run(self, local: Callable[[], T], function: Callable[..., None], *args: Any, apart: bool = False) -> T:
        """`local()` here while `function(objects, *args)` runs in every rank process. Returns when all are done.

        With `apart` the processes take further calls meanwhile. Raises what `local` raises, and `UserError` that names
        a rank which died.
        """
        with self.calling(function, *args, apart=apart):
            return local()

    @contextmanager
    def calling(self, function: Callable[..., None], *args: Any, apart: bool = False) -> Iterator[None]:
        """As `run`, with the body of the `with` in place of `local`."""
        packed = pack(args)
        suspicion = threading.Timer(PATIENCE, self.say_where)
        suspicion.daemon = True
        suspicion.start()
        try:
            futures = [host.send(function, packed, apart=apart) for host in self._hosts]
            try:
                yield
            except UserError:
                self._wait(futures)  # the others refuse it too
                raise
            except BaseException as error:
                died = self._has_reason()
                self._kill()  # they would wait in a collective for ever
                if died:
                    raise UserError(self._message()) from error
                raise
            refusals = self._wait(futures)
        finally:
            suspicion.cancel()
        if refusals:
            raise UserError(refusals[0])

    def say_where(self) -> None:
        """Every rank writes the stacks of its threads to stderr, rank 0 first."""
        _log.warning("A call of the learner's ranks takes long; stacks of all of them follow, rank 0 first.")
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        for host in self._hosts:
            host.say_where()

    def close(self) -> None:
        """End the processes, and the process group here. May be called twice."""
        self._closing = True
        for host in self._hosts:
            host.close()
        if self._hosts:
            process_group.leave()
        self._hosts = []

    def _wait(self, futures: Sequence[Future[list[str]]]) -> list[str]:
        """What ranks refuse to do."""
        try:
            return [refusal for future in futures for refusal in future.result()]
        except ConnectionError as error:
            self._has_reason()
            raise UserError(self._message()) from error

    def _has_reason(self) -> bool:
        """Whether it turns out which rank has failed."""
        for host in self._hosts:
            if not self._failed.is_set():
                host.find_lost()
        return self._failed.wait(_REASON)

    def _on_end(self, rank: int, how: str) -> None:
        self._failures.setdefault(rank, how)
        with self._lock:
            is_first, self._closing = not self._closing, True
        if is_first:
            threading.Thread(target=self._end_all, daemon=True).start()

    def _end_all(self) -> None:
        """A rank has died: nobody may wait for it."""
        time.sleep(_SETTLING)
        if all(_is_consequence(how) for how in self._failures.values()):
            for host in self._hosts:
                host.find_lost()
        self._failed.set()
        self._kill()
        if not self._has_joined:  # torch would wait for the rank for half an hour
            hang_up(self._meeting.address, self._meeting.port)
        # gloo ends a collective whose other side is gone; NCCL waits until it is told.
        if self.device == "cuda" and dist.is_initialized():
            dist.distributed_c10d._abort_process_group()

    def _kill(self) -> None:
        self._closing = True
        for host in self._hosts:
            host.kill()

    def _message(self) -> str:
        causes = sorted(self._failures, key=lambda rank: (_is_consequence(self._failures[rank]), rank))
        what = f"Learner rank {causes[0]} of {self.ranks} {self._failures[causes[0]]}." if causes else "A rank ended."
        is_here = not causes or causes[0] < self.ranks // self.nodes
        where = "above" if is_here else "in the logs of Ray on that node (/tmp/ray/session_latest/logs)"
        return (
            f"{what} What it wrote is {where}. Run again to go on from the last checkpoint. A rank that is killed "
            "often lacked memory: lower learner.token_budget, or set learner.checkpointing=full."
        )


def _is_consequence(how: str) -> bool:
    """A rank that raises has often lost another one."""
    return "raised " in how


def _check(ranks: int, device: str, nodes: int) -> None:
    if dist.is_torchelastic_launched():
        raise UserError("learner.ranks starts processes itself: run without torchrun, or leave learner.ranks out.")
    here = ranks // nodes
    if device == "cuda" and here > torch.cuda.device_count():
        raise UserError(
            f"learner.ranks is {ranks} on {nodes} nodes, but torch sees {torch.cuda.device_count()} CUDA devices here. "
            f"Set learner.ranks={torch.cuda.device_count() * nodes} or less, learner.nodes, or learner.device=cpu."
        )
    cores = len(os.sched_getaffinity(0))
    if device == "cpu" and here > cores:
        _log.warning(
            f"learner.ranks is {ranks} on {nodes} nodes, and this process may use {cores} cores here: the {here} ranks "
            "of a node take turns on them, and wait for each other at every layer. Set "
            f"learner.ranks={cores * nodes} or less."
        )
