"""The rank processes of one host: they do as they are told, and nobody outlives whoever started them."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Protocol

from agentloop.trainer.cluster import rank_process
from agentloop.trainer.cluster.process_group import Meeting
from agentloop.trainer.cluster.rank_process import READY, Call, Done, Function
from agentloop.trainer.cluster.shared_arrays import Packed, Parcel

Refusals = list[str]
"""What ranks refused to do: messages of `UserError`, each rank's own; empty where all did it."""
_GRACE = 5.0
"""Seconds in which a process ends by itself."""


class Ranks(Protocol):
    """Rank processes of one host, this one or another."""

    def send(self, function: Function, packed: Packed, *, apart: bool) -> Future[Refusals]:
        """Have all of them call it; with `apart` they take further calls meanwhile. The future raises
        `ConnectionError` where a rank ended instead."""
        ...

    def find_lost(self) -> None:
        """Blocks until it is known whether the host still answers; where it does not, that is a failure."""

    def say_where(self) -> None:
        """Every rank writes the stacks of its threads to stderr."""

    def kill(self) -> None:
        """End them now."""

    def close(self) -> None:
        """End them in peace. May be called twice."""


@dataclass(slots=True)
class _Pending:
    """A call that some ranks have not answered."""

    missing: set[int]
    parcel: Parcel
    answer: Future[Refusals] = field(default_factory=Future)
    refusals: Refusals = field(default_factory=list)


class HostRanks:
    """Ranks `ranks` of `meeting.ranks`, one a process, on this host. `on_end(rank, how)` is told when one ends by
    itself, in a thread."""

    def __init__(self, ranks: range, meeting: Meeting, on_end: Callable[[int, str], None]) -> None:
        self._on_end = on_end
        self._numbers = itertools.count(READY + 1)
        self._closing = False
        self._lock = threading.Lock()
        self._pending = {READY: _Pending(set(ranks), Parcel(b"", None, ()))}
        self.ready = self._pending[READY].answer
        """Set when all of them are about to join the process group."""
        self._pipes: dict[int, Connection] = {}
        self._processes: dict[int, SpawnProcess] = {}
        if not ranks:
            self._pending.pop(READY).answer.set_result([])
        for rank in ranks:
            self._start(rank, meeting)

    def _start(self, rank: int, meeting: Meeting) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes[rank], theirs = context.Pipe()
        self._processes[rank] = context.Process(
            target=rank_process.main, args=(theirs, rank, meeting), name=f"learner rank {rank}", daemon=True
        )
        self._processes[rank].start()
        theirs.close()
        threading.Thread(target=self._listen, args=(rank,), daemon=True).start()

    @property
    def pids(self) -> dict[int, int]:
        """Of the process of each rank."""
        return {rank: process.pid for rank, process in self._processes.items() if process.pid is not None}

    def send(self, function: Function, packed: Packed, *, apart: bool) -> Future[Refusals]:
        """See `Ranks.send`."""
        if not self._pipes:
            nothing: Future[Refusals] = Future()
            nothing.set_result([])
            return nothing
        pending = _Pending(set(self._pipes), packed.share())
        pending.answer.add_done_callback(lambda _: pending.parcel.remove())
        with self._lock:
            number = next(self._numbers)
            self._pending[number] = pending
            try:
                for pipe in self._pipes.values():
                    pipe.send(Call(number, function, pending.parcel, apart))
            except OSError:
                self._give_up()
        return pending.answer

    def find_lost(self) -> None:
        """See `Ranks.find_lost`: this host is not."""

    def say_where(self) -> None:
        """See `Ranks.say_where`."""
        for process in self._processes.values():
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, rank_process.SAY_WHERE)

    def kill(self) -> None:
        """See `Ranks.kill`."""
        self._closing = True
        for process in self._processes.values():
            process.kill()

    def close(self) -> None:
        """See `Ranks.close`."""
        self._closing = True
        for pipe in self._pipes.values():
            with suppress(OSError):  # it has ended already
                pipe.send(None)
        for process in self._processes.values():
            process.join(_GRACE)
        self.kill()
        for process in self._processes.values():
            process.join()

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
                self._answer(rank, done)
        if not self._closing:
            self._processes[rank].join()
            if not self._closing:
                self._on_end(rank, f"raised {failure}" if failure else _end_of(self._processes[rank].exitcode))
        with self._lock:
            self._give_up()

    def _answer(self, rank: int, done: Done) -> None:
        with self._lock:
            pending = self._pending.get(done.number)
            if pending is None:  # given up
                return
            pending.missing.discard(rank)
            if done.refusal is not None:
                pending.refusals.append(done.refusal)
            if pending.missing:
                return
            del self._pending[done.number]
        pending.answer.set_result(pending.refusals)

    def _give_up(self) -> None:
        """A rank has ended: no call of all of them will be answered."""
        for number in list(self._pending):
            self._pending.pop(number).answer.set_exception(ConnectionError("a rank of the learner has ended"))


def _end_of(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    return f"ended with exit code {exit_code}"
