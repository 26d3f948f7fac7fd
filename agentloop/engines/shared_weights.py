"""Weights that the processes of a host share: written once, mapped by every engine, updated in place.

The learner's process has a `WeightShelf`. What it hands out, `SharedWeights`, is small and travels to the engines,
which read the memory of the shelf itself: on a GPU through CUDA IPC, from this GPU or another one of the host, else as
anonymous memory of the host. The mapping stays valid from update to update, so that an update is one copy on either
side and nothing passes through the host where learner and engine are on GPUs.
"""

from __future__ import annotations

import itertools
import math
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from agentloop.errors import EngineError

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 256 << 20
_ALIGNMENT = 256
_STAMP_BYTES = _ALIGNMENT
"""At the start of the first bucket: how often the shelf was filled, or -1 while it is being filled."""
_shelves: weakref.WeakValueDictionary[str, WeightShelf] = weakref.WeakValueDictionary()
"""Of this process: memory of a GPU cannot be mapped by the process that has it already."""
_numbers = itertools.count()


class CannotMap(EngineError):
    """This process cannot map what another one shares: it is on another host, or its GPU cannot reach the other's."""


class Overwritten(EngineError):
    """The shelf was filled again while it was read: what was read is of no version."""


class Place(NamedTuple):
    """Where a weight is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bucket: int
    start: int
    """In bytes."""


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Iterates over (Hugging Face name, tensor); the tensors are the shelf's memory, for reading.

    They hold until the shelf is filled again. Who takes all of them in one go meets `Overwritten` at the end where that
    happened meanwhile.
    """

    shelf: str
    stamp: int
    places: tuple[Place, ...]
    buckets: tuple[Any, ...]
    """Handles."""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        mapped = self.open()
        yield from mapped
        mapped.check()

    @property
    def is_of_this_process(self) -> bool:
        return self.shelf in _shelves

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {place.name: place.shape for place in self.places}

    @property
    def num_bytes(self) -> int:
        return sum(_num_bytes(place.dtype, place.shape) for place in self.places)

    def open(self, device: torch.device | None = None) -> MappedWeights:
        """Map the memory; GPU memory appears as that of `device` (None: the present one) of this process, whichever GPU
        it is of. Raises `CannotMap`."""
        shelf = _shelves.get(self.shelf)
        if shelf is not None:
            return MappedWeights(self, shelf.buckets)
        try:
            return MappedWeights(self, [_map(handle, device) for handle in self.buckets])
        except (OSError, RuntimeError) as error:
            raise CannotMap(f"shared weights cannot be mapped: {type(error).__name__}: {error}") from error


class MappedWeights:
    """`SharedWeights` in the address space of this process."""

    def __init__(self, shared: SharedWeights, buckets: list[torch.Tensor]) -> None:
        self._buckets = buckets
        self._shared = shared
        self._tensors = [_view(buckets[place.bucket], place) for place in shared.places]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return zip((place.name for place in self._shared.places), self._tensors, strict=True)

    def again(self, shared: SharedWeights) -> bool:
        """These are `shared` as well, filled at another time: takes over their stamp, and says whether it could."""
        fits = (shared.shelf, shared.places) == (self._shared.shelf, self._shared.places)
        if fits:
            self._shared = shared
        return fits

    def check(self) -> None:
        """Raises `Overwritten` where the shelf was filled again since."""
        if int(_stamp(self._buckets[0]).item()) != self._shared.stamp:
            raise Overwritten("the shared weights were overwritten while they were read")


class WeightShelf:
    """Memory for one set of weights. `on_host` keeps it off GPUs; else it is where the weights are.

    Not thread-safe: one `put` at a time.
    """

    def __init__(self, *, on_host: bool = False, bucket_bytes: int = BUCKET_BYTES) -> None:
        self.buckets: list[torch.Tensor] = []
        """uint8, [num_bytes] each."""
        self._on_host = on_host
        self._bucket_bytes = bucket_bytes
        self._handles: list[Any] = []
        self._places: list[Place] = []
        self._end = 0
        """Of what the last bucket holds."""
        self._count = 0
        self.name = ""
        self._rename()

    def _rename(self) -> None:
        """Whoever mapped the old name must not take the new content for it."""
        self.name = f"{os.getpid()}-{next(_numbers)}"
        _shelves[self.name] = self

    def put(self, weights: Iterable[tuple[str, torch.Tensor]]) -> SharedWeights:
        """Copy weights, one at a time as they come. Those of the last `put` are overwritten."""
        if self.buckets:
            _stamp(self.buckets[0]).fill_(-1)
        number = -1
        for number, (name, tensor) in enumerate(weights):
            place = self._place(number, name, tensor.detach())
            _view(self.buckets[place.bucket], place).copy_(tensor.detach())
        if number + 1 < len(self._places):
            self._cut(number + 1)
        if not self.buckets:
            self._add_bucket(_STAMP_BYTES, None)
        self._count += 1
        # Other processes see nothing of the order of a stream: the stamp follows what it vouches for.
        _synchronize(self.buckets)
        _stamp(self.buckets[0]).fill_(self._count)
        _synchronize(self.buckets)
        return SharedWeights(self.name, self._count, tuple(self._places), tuple(self._handles))

    def _place(self, number: int, name: str, tensor: torch.Tensor) -> Place:
        """Where it was the last time, or a new place if the weights are others than then."""
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        if number < len(self._places):
            if self._places[number][:3] == (name, dtype, shape):
                return self._places[number]
            self._cut(number)
        size = tensor.numel() * tensor.element_size()
        device = None if self._on_host or tensor.device.type == "cpu" else tensor.device
        if not self._fits(size, device):
            self._add_bucket(size, device)
        place = Place(name, dtype, shape, len(self.buckets) - 1, self._end)
        self._places.append(place)
        self._end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place

    def _fits(self, size: int, device: torch.device | None) -> bool:
        if not self.buckets or self._end + size > len(self.buckets[-1]):
            return False
        return self.buckets[-1].device.type == "cpu" if device is None else self.buckets[-1].device == device

    def _add_bucket(self, size: int, device: torch.device | None) -> None:
        size = max(size + _STAMP_BYTES, self._bucket_bytes)
        bucket, handle = _host_bucket(size) if device is None else _device_bucket(size, device)
        self.buckets.append(bucket)
        self._handles.append(handle)
        self._end = 0
        if len(self.buckets) == 1:
            _stamp(bucket).fill_(-1)
            self._end = _STAMP_BYTES

    def _cut(self, number: int) -> None:
        """Forget the places from `number` on; their memory is used anew."""
        self._rename()
        del self._places[number:]
        last = self._places[-1] if self._places else None
        keep = last.bucket + 1 if last else min(len(self.buckets), 1)
        del self.buckets[keep:], self._handles[keep:]
        self._end = _STAMP_BYTES
        if last is not None:
            size = _num_bytes(last.dtype, last.shape)
            self._end = last.start + -(-size // _ALIGNMENT) * _ALIGNMENT


class _HostHandle(NamedTuple):
    pid: int
    descriptor: int
    size: int


class _DeviceHandle(NamedTuple):
    arguments: tuple[Any, ...]
    """Of torch's `rebuild_cuda_tensor`."""


_DEVICE_ARGUMENT = 6


def _host_bucket(size: int) -> tuple[torch.Tensor, _HostHandle]:
    """Memory without a name in any folder: it is gone when the last process that maps it is, however they end."""
    descriptor = os.memfd_create("agentloop-weights")
    os.ftruncate(descriptor, size)
    handle = _HostHandle(os.getpid(), descriptor, size)
    bucket = _map(handle, None)
    weakref.finalize(bucket, os.close, descriptor)
    return bucket, handle


def _device_bucket(size: int, device: torch.device) -> tuple[torch.Tensor, _DeviceHandle]:
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    bucket = torch.empty(size, dtype=torch.uint8, device=device)
    return bucket, _DeviceHandle(reduce_tensor(bucket)[1])


def _map(handle: _HostHandle | _DeviceHandle, device: torch.device | None) -> torch.Tensor:
    import torch

    if isinstance(handle, _HostHandle):
        path = f"/proc/{handle.pid}/fd/{handle.descriptor}"
        return torch.from_file(path, shared=True, size=handle.size, dtype=torch.uint8)
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    # The driver maps memory of any GPU that this one reaches, also where this process does not see it.
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    arguments = list(handle.arguments)
    arguments[_DEVICE_ARGUMENT] = index
    bucket: torch.Tensor = rebuild_cuda_tensor(*arguments)
    return bucket


def _view(bucket: torch.Tensor, place: Place) -> torch.Tensor:
    import torch

    size = _num_bytes(place.dtype, place.shape)
    return bucket[place.start : place.start + size].view(getattr(torch, place.dtype)).view(place.shape)


def _num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    import torch

    return math.prod(shape) * int(getattr(torch, dtype).itemsize)


def _stamp(bucket: torch.Tensor) -> torch.Tensor:
    import torch

    return bucket[:8].view(torch.int64)


def _synchronize(buckets: list[torch.Tensor]) -> None:
    import torch

    for device in {bucket.device for bucket in buckets if bucket.is_cuda}:
        torch.cuda.synchronize(device)
