"""Broadcast weights to other hosts: from the learner's shelf to a shelf with the same layout on each host.

The transport is NCCL between GPUs, otherwise gloo. Engines on the other hosts keep sampling meanwhile, and then map
their shelf like engines on the learner's host: they pause only for a local copy, even if the network is slow. (vLLM's
own weight transfer writes into the model, so sampling stops until the last byte has arrived. Its interface changed in
0.28, and it does not support CPUs.)

    learner's process                                   one process per remote engine
    Sender(...)  -- BroadcastWeights, pickled -->          BroadcastWeights.shared(shelf) -> SharedWeights
      .send(shared)  ==== buckets, in a separate process group ====>
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from agentloop.errors import EngineError
from agentloop.weights.rendezvous import listening_store
from agentloop.weights.shelf import Place, SharedWeights, WeightShelf, spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

Backend = Literal["nccl", "gloo"]
_LOOK_SECONDS = 0.02
_CONNECT_SECONDS = 10.0
_END_SECONDS = 10.0
_ENDED = "the group has ended"
_LEFT_FREE = 2 << 30
"""Bytes of GPU memory that a shelf leaves free for running engines."""
_numbers = itertools.count()


class BroadcastFailed(EngineError):
    """A member of the group was lost, or a transfer timed out. The other members may form a new group."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address where the members of a group meet; the sender is member 0."""

    name: str
    host: str
    port: int
    size: int
    backend: Backend
    seconds: float
    """Timeout for other members, and for one bucket, in seconds."""


class Sender:
    """Member 0 of a group with `receivers` other members, which reach it at the address `host`.

    Its methods raise `BroadcastFailed`, also in a thread that waits while another thread calls `abort`.
    """

    def __init__(self, host: str, receivers: int, backend: Backend, seconds: float) -> None:
        store = listening_store(host)
        name = f"{os.getpid()}-{next(_numbers)}"
        self.rendezvous = Rendezvous(name, host, store.port, receivers + 1, backend, seconds)
        self._group = _Group(self.rendezvous, 0, store, host)

    def send(self, shared: SharedWeights) -> None:
        """Send weights to all receivers. Raises `CannotMap` if this process cannot map all of them."""
        mapped = shared.open(self._group.device)
        with self._group.all_members():
            for (first, end), bucket in zip(spans(shared.places), mapped.buckets, strict=True):
                self._group.broadcast(bucket[first:end])
            self._group.finish()
        mapped.check()

    def abort(self) -> None:
        """End the group."""
        self._group.abort()


@dataclass(frozen=True, slots=True)
class BroadcastWeights:
    """A `WeightHandle` for member `rank` of a group, at the address `host`, which receives the weights on use."""

    rendezvous: Rendezvous
    rank: int
    host: str
    places: tuple[Place, ...]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        shelf = WeightShelf()
        yield from self.shared(shelf).tensors()

    def shared(self, shelf: WeightShelf) -> SharedWeights:
        """Receive the weights into `shelf`. Blocks. Raises `BroadcastFailed`."""
        group = _joined(self.rendezvous, self.rank, self.host)
        try:
            with group.all_members():
                buckets = shelf.laid_out(self.places, _room_on(group.device, self.places))
                for (first, end), bucket in zip(spans(self.places), buckets, strict=True):
                    group.broadcast(bucket[first:end])
                group.finish()
        except BroadcastFailed:
            # Bytes in flight may still be written to this memory.
            shelf.renew()
            raise
        return shelf.end()


_groups: dict[tuple[str, int], _Group] = {}
"""Groups that this process is a member of, by name and rank; kept between updates."""
_left: set[str] = set()
"""Names of groups that have ended."""


def _joined(rendezvous: Rendezvous, rank: int, host: str) -> _Group:
    key = rendezvous.name, rank
    if key not in _groups:
        _groups[key] = _Group(rendezvous, rank, _store_of(rendezvous), host)
    if rendezvous.name in _left:  # it was aborted before this member joined
        leave(rendezvous)
        raise BroadcastFailed(f"the weight broadcast failed: {_ENDED}")
    return _groups[key]


def leave(rendezvous: Rendezvous) -> None:
    """End the group in this process: a member that waits for weights raises `BroadcastFailed`."""
    _left.add(rendezvous.name)
    for key in [key for key in _groups if key[0] == rendezvous.name]:
        _groups.pop(key).abort()


class _Group:
    """A process group separate from torch's default group, which the learner uses. It forms when all members join."""

    def __init__(self, rendezvous: Rendezvous, rank: int, store: Any, host: str) -> None:
        import torch

        self._rendezvous, self._rank, self._store, self._host = rendezvous, rank, store, host
        self._aborted = threading.Event()
        self._group: Any = None
        self._last: Any = None
        is_nccl = rendezvous.backend == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")

    @contextmanager
    def all_members(self) -> Iterator[None]:
        """Raise `BroadcastFailed` for any failure inside the block, and end the group."""
        try:
            if self._group is None:
                self._meet()
            yield
        except RuntimeError as error:  # torch raises it if the group is broken
            self.abort()
            raise BroadcastFailed(f"the weight broadcast failed: {type(error).__name__}: {error}") from error

    def _meet(self) -> None:
        store, rendezvous = self._store, self._rendezvous
        if store is None:
            raise RuntimeError(_ENDED)
        store.set(f"{rendezvous.name}/{self._rank}", "here")
        there = [f"{rendezvous.name}/{rank}" for rank in range(rendezvous.size)]
        self._until(lambda: bool(store.check(there)))
        make = _nccl if rendezvous.backend == "nccl" else _gloo
        self._group = make(store, rendezvous, self._rank, self._host)

    def broadcast(self, memory: torch.Tensor) -> None:
        """Send uint8 [num_bytes], on any device, from member 0 to all."""
        import torch
        from torch._C._distributed_c10d import BroadcastOptions

        group = self._group  # read it first: `abort` sets the event before it removes the group
        if self._aborted.is_set():
            raise RuntimeError(_ENDED)
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        staged = memory
        if memory.device.type != self.device.type:
            staged = memory.to(self.device) if self._rank == 0 else torch.empty_like(memory, device=self.device)

        def launch() -> Any:
            if staged.is_cuda:  # the current device is set per thread
                torch.cuda.set_device(staged.device)
            return group.broadcast([staged], options)

        launched = _in_a_thread(launch)
        self._until(launched.done)
        work = launched.result()
        if self._rendezvous.backend == "gloo" or staged is not memory:
            self._wait(work)
        if staged is not memory and self._rank > 0:
            memory.copy_(staged)
        self._last = work

    def finish(self) -> None:
        """Wait until everything has arrived."""
        if self._last is not None:
            self._wait(self._last)
            self._last = None

    def _wait(self, work: Any) -> None:
        if self._rendezvous.backend == "gloo":
            work.wait(timedelta(seconds=self._rendezvous.seconds))
        else:
            self._until(work.is_completed)
            work.wait()

    def _until(self, condition: Callable[[], bool]) -> None:
        """Poll the condition, because another thread cannot interrupt torch's own wait."""
        end = time.monotonic() + self._rendezvous.seconds
        pause = 0.0
        while not condition():
            if self._aborted.is_set():
                raise RuntimeError(_ENDED)
            if time.monotonic() > end:
                raise RuntimeError(f"no transfer for {self._rendezvous.seconds:g} s")
            time.sleep(pause)
            pause = min(pause + 0.0005, _LOOK_SECONDS)

    def abort(self) -> None:
        self._aborted.set()
        self._store = None  # without the sender's store nobody waits for it any more
        group, self._group = self._group, None
        if group is not None:
            # NCCL ends a communicator only when the other members end it, too, or their processes exit.
            wait([_in_a_thread(group.abort)], _END_SECONDS)


def _in_a_thread(call: Callable[[], Any]) -> Future[Any]:
    """Call `call` in a daemon thread, because NCCL may hang after a member has died."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except RuntimeError as error:  # torch's own, of a group that broke
            found.set_exception(error)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return found


def _store_of(rendezvous: Rendezvous) -> Any:
    """Connect to the sender's store. Raises `BroadcastFailed` if the sender has already given up."""
    from torch._C._distributed_c10d import TCPStore

    try:
        # The store itself would retry for a long time.
        socket.create_connection((rendezvous.host, rendezvous.port), timeout=_CONNECT_SECONDS).close()
        store = TCPStore(rendezvous.host, rendezvous.port, timeout=timedelta(seconds=_CONNECT_SECONDS))
    except (OSError, RuntimeError) as error:
        raise BroadcastFailed(f"no sender of weights at {rendezvous.host}:{rendezvous.port}: {error}") from error
    store.set_timeout(timedelta(seconds=rendezvous.seconds))
    return store


def _gloo(store: Any, rendezvous: Rendezvous, rank: int, host: str) -> Any:
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    # By default gloo uses the address of the host name, which other hosts may not reach.
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timedelta(seconds=rendezvous.seconds)
    return ProcessGroupGloo(PrefixStore(rendezvous.name, store), rank, rendezvous.size, options)


def _nccl(store: Any, rendezvous: Rendezvous, rank: int, host: str) -> Any:
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(hours=1)  # `_until` implements the timeout
    # By default torch ends the processes of all members when one dies.
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        return ProcessGroupNCCL(PrefixStore(rendezvous.name, store), rank, rendezvous.size, options)
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _room_on(device: torch.device, places: tuple[Place, ...]) -> torch.device:
    """Return the device for a shelf: the GPU if it has enough memory left after engines have started, else the host."""
    import torch

    if device.type == "cpu":
        return device
    needed = sum(end for _, end in spans(places))
    return device if torch.cuda.mem_get_info(device)[0] > needed + _LEFT_FREE else torch.device("cpu")
