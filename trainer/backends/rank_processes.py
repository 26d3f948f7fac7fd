"""The further ranks of a learner that this process is rank 0 of: processes of this host that do as this one does.

    driver (rank 0)                       rank processes 1 .. n-1
    run(local, function, *args)  -------> function(objects, *args)     all meet in collectives of torch.distributed
          local()                                 |
          <------------- done --------------------+

Arguments are written to shared memory once; a rank reads of a batch what is its share. A rank that dies, or raises what
is no `UserError`, ends the others: none of them could go on.
"""

from __future__ import annotations

import faulthandler
import itertools
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from agentloop.errors import UserError
from agentloop.trainer.backends import process_group, rank_process
from agentloop.trainer.backends.rank_process import READY, Call, Done
from agentloop.trainer.backends.shared_arrays import parcel

T = TypeVar("T")
_log = logging.getLogger(__name__)

PATIENCE = 900.0
"""Seconds after which a call is suspected to hang; most of them take seconds."""

_GRACE = 5.0
"""Seconds in which a process ends by itself."""
_REASON = 30.0
"""Seconds in which the rank that broke a collective is looked for, before rank 0 takes the blame."""
_SETTLING = 0.5
"""Seconds from the first failure to the others that it brings about."""


class RankProcesses:
    """Ranks 1 to `ranks` - 1. Raises `UserError` where there are fewer devices."""

    def __init__(self, ranks: int, device: str) -> None:
        _check(ranks, device)
        self.ranks, self.device = ranks, device
        self.users = 0
        """Learners that run in these processes."""
        self._numbers = itertools.count(READY + 1)
        self._pending: dict[tuple[int, int], Future[str | None]] = {}
        self._failures: dict[int, str] = {}
        self._failed = threading.Event()
        self._closing = False
        self._lock = threading.Lock()
        store = process_group.listen(ranks)
        self._pipes: dict[int, Connection] = {}
        self._processes: dict[int, SpawnProcess] = {}
        for rank in range(1, ranks):
            self._start(rank, store.port)
        self._wait([self._pending[rank, READY] for rank in self._pipes])
        process_group.join(device, 0, ranks, store)

    def _start(self, rank: int, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes[rank], theirs = context.Pipe()
        self._processes[rank] = context.Process(
            target=rank_process.main,
            args=(theirs, rank, self.ranks, port, self.device),
            name=f"learner rank {rank}",
            daemon=True,
        )
        self._processes[rank].start()
        theirs.close()
        self._pending[rank, READY] = Future()
        threading.Thread(target=self._listen, args=(rank,), daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return not self._failed.is_set() and not self._closing

    @property
    def pids(self) -> dict[int, int]:
        """Of the process of each rank but this one."""
        return {rank: process.pid for rank, process in self._processes.items() if process.pid is not None}

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
        sent = parcel(args)
        suspicion = threading.Timer(PATIENCE, self.say_where)
        suspicion.daemon = True
        suspicion.start()
        try:
            number = next(self._numbers)
            futures = [self._send(rank, Call(number, function, sent, apart)) for rank in self._pipes]
            try:
                yield
            except UserError:
                self._wait(futures)  # the others refuse it too
                raise
            except BaseException as error:
                died = self._failed.wait(_REASON)
                self._kill()  # they would wait in a collective for ever
                if died:
                    raise UserError(self._message()) from error
                raise
            refusals = self._wait(futures)
        finally:
            suspicion.cancel()
            sent.remove()
        if any(refusals):
            raise UserError(next(refusal for refusal in refusals if refusal))

    def say_where(self) -> None:
        """Every rank writes the stacks of its threads to stderr, rank 0 first."""
        _log.warning("A call of the learner's ranks takes long; stacks of all of them follow, rank 0 first.")
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        for process in self._processes.values():
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, rank_process.SAY_WHERE)

    def close(self) -> None:
        """End the processes, and the process group here. May be called twice."""
        self._closing = True
        for pipe in self._pipes.values():
            with suppress(OSError):  # it has ended already
                pipe.send(None)
        for process in self._processes.values():
            process.join(_GRACE)
        self._kill()
        for process in self._processes.values():
            process.join()
        if self._pipes:
            process_group.leave()
        self._pipes = {}

    def _send(self, rank: int, call: Call) -> Future[str | None]:
        future: Future[str | None] = Future()
        with self._lock:
            self._pending[rank, call.number] = future
            try:
                self._pipes[rank].send(call)
            except OSError:
                self._give_up(rank)
        return future

    def _wait(self, futures: Sequence[Future[str | None]]) -> list[str | None]:
        """What each rank refuses to do, None where it did it."""
        try:
            return [future.result() for future in futures]
        except ConnectionError as error:
            self._failed.wait(_REASON)
            raise UserError(self._message()) from error

    def _listen(self, rank: int) -> None:
        pipe = self._pipes[rank]
        failure = None
        while failure is None:
            try:
                done: Done = pipe.recv()
            except (EOFError, OSError):
                break
            failure = done.failure
            if failure is None:
                with self._lock:
                    future = self._pending.pop((rank, done.number))
                future.set_result(done.refusal)
        if not self._closing:
            self._processes[rank].join()
            self._failures[rank] = f"raised {failure}" if failure else _end_of(self._processes[rank].exitcode)
            self._end_all()
        with self._lock:
            self._give_up(rank)

    def _end_all(self) -> None:
        """A rank has died: nobody may wait for it."""
        time.sleep(_SETTLING)
        with self._lock:
            is_first, self._closing = not self._closing, True
        if is_first:
            self._failed.set()
            self._kill()
            # gloo ends a collective whose other side is gone; NCCL waits until it is told.
            if self.device == "cuda" and dist.is_initialized():
                dist.distributed_c10d._abort_process_group()

    def _kill(self) -> None:
        self._closing = True
        for process in self._processes.values():
            process.kill()

    def _give_up(self, rank: int) -> None:
        for key in [key for key in self._pending if key[0] == rank]:
            self._pending.pop(key).set_exception(ConnectionError(f"learner rank {rank} has ended"))

    def _message(self) -> str:
        # A rank that raises has often lost another one.
        causes = sorted(self._failures, key=lambda rank: (self._failures[rank].startswith("raised"), rank))
        what = f"Learner rank {causes[0]} of {self.ranks} {self._failures[causes[0]]}." if causes else "A rank ended."
        return (
            f"{what} What it wrote is above. Run again to go on from the last checkpoint. A rank that is killed often "
            "lacked memory: lower learner.token_budget, or set learner.checkpointing=full."
        )


def _check(ranks: int, device: str) -> None:
    if dist.is_torchelastic_launched():
        raise UserError("learner.ranks starts processes itself: run without torchrun, or leave learner.ranks out.")
    if device == "cuda" and ranks > torch.cuda.device_count():
        raise UserError(
            f"learner.ranks is {ranks}, but torch sees {torch.cuda.device_count()} CUDA devices. Set learner.ranks="
            f"{torch.cuda.device_count()} or less, or learner.device=cpu."
        )


def _end_of(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"ended with exit code {exit_code}"
