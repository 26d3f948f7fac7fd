"""Weights shared by the processes of a host: written once, mapped by every engine, updated in place.

The learner has a `WeightShelf`; with several ranks, each has a shelf with a part of the weights. `SharedWeights`
describe them and are sent to the engines, which read the memory itself: through CUDA IPC from any GPU of the host, or
as anonymous host memory. The mapping stays valid between updates. So an update is one copy on either side, and nothing
passes through host memory if learner and engine are on GPUs.
"""

from __future__ import annotations

import itertools
import math
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from agentloop.errors import EngineError
from agentloop.weights.buckets import map_bucket, new_bucket

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 256 << 20
_ALIGNMENT = 256
STAMP_BYTES = _ALIGNMENT
"""Size of the stamp at the start of a shelf: the number of times it was filled, or -1 while it is being filled."""
_shelves: weakref.WeakValueDictionary[str, WeightShelf] = weakref.WeakValueDictionary()
"""Shelves of this process, which cannot map GPU memory that it already has."""
_numbers = itertools.count()


class CannotMap(EngineError):
    """This process cannot map the shared memory: it is on another host, or on a GPU without peer access."""


class Overwritten(EngineError):
    """A shelf was refilled while it was read, so the result mixes two versions."""


class Place(NamedTuple):
    """The position of a weight."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bucket: int
    """Index of the bucket, counted over all parts."""
    start: int
    """Offset in bytes."""

    @property
    def num_bytes(self) -> int:
        import torch

        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)


class Part(NamedTuple):
    """One shelf, filled once."""

    shelf: str
    stamp: int
    buckets: tuple[Any, ...]
    """Their handles."""


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """A `WeightHandle` whose tensors are the memory of shelves, read-only, valid until a shelf is refilled.

    `tensors` raises `Overwritten` at its end if that happened meanwhile.
    """

    parts: tuple[Part, ...]
    places: tuple[Place, ...]

    @classmethod
    def joined(cls, shared: Sequence[SharedWeights], names: Iterable[str]) -> SharedWeights:
        """Join parts of one set of weights, in the order of `names`; each weight is in exactly one part."""
        places: dict[str, Place] = {}
        first = 0
        for each in shared:
            places |= {place.name: place._replace(bucket=first + place.bucket) for place in each.places}
            first += sum(len(part.buckets) for part in each.parts)
        return cls(tuple(part for each in shared for part in each.parts), tuple(places[name] for name in names))

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        mapped = self.open()
        yield from mapped
        mapped.check()

    def shared(self, shelf: WeightShelf) -> SharedWeights:
        return self

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process filled a part of the weights."""
        return any(part.shelf in _shelves for part in self.parts)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {place.name: place.shape for place in self.places}

    @property
    def num_bytes(self) -> int:
        return sum(place.num_bytes for place in self.places)

    def open(self, device: torch.device | None = None) -> MappedWeights:
        """Map the memory. Raises `CannotMap`.

        GPU memory appears on `device`, even if it is on another GPU. None: on its own GPU, which must be visible.
        """
        try:
            return MappedWeights(self, [_opened(part, device) for part in self.parts])
        except (OSError, RuntimeError) as error:
            raise CannotMap(f"shared weights cannot be mapped: {type(error).__name__}: {error}") from error


class MappedWeights:
    """`SharedWeights` in the address space of this process."""

    def __init__(self, shared: SharedWeights, parts: list[list[torch.Tensor]]) -> None:
        self.buckets = [bucket for part in parts for bucket in part]
        """uint8 [num_bytes] each."""
        self.stamped = [sum(map(len, parts[:number])) for number in range(len(parts))]
        """Indices of buckets that begin with a stamp."""
        self._shared = shared
        self._tensors = [_view(self.buckets[place.bucket], place) for place in shared.places]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return zip((place.name for place in self._shared.places), self._tensors, strict=True)

    def again(self, shared: SharedWeights) -> bool:
        """Adopt the stamps of `shared` if it is the same memory, refilled; return whether it is."""
        fits = (_shelves_of(shared), shared.places) == (_shelves_of(self._shared), self._shared.places)
        if fits:
            self._shared = shared
        return fits

    def check(self) -> None:
        """Raise `Overwritten` if a shelf was refilled since it was mapped."""
        for index, part in zip(self.stamped, self._shared.parts, strict=True):
            if int(_stamp(self.buckets[index]).item()) != part.stamp:
                raise Overwritten("the shared weights were overwritten while they were read")


class WeightShelf:
    """Memory for one set of weights, on the device of the weights; `on_host` keeps it off GPUs. Not thread-safe.

    Fill it at once with `put`, or weight by weight: `begin`, then `room_for` each weight, then `end`.
    """

    def __init__(self, *, on_host: bool = False, bucket_bytes: int = BUCKET_BYTES) -> None:
        self.buckets: list[torch.Tensor] = []
        """uint8, [num_bytes] each."""
        self.on_host = on_host
        self._bucket_bytes = bucket_bytes
        self._handles: list[Any] = []
        self._places: list[Place] = []
        self._number = 0
        """Number of weights since `begin`."""
        self._end = 0
        """End of the used part of the last bucket."""
        self._count = 0
        self.name = ""
        self._rename()

    def _rename(self) -> None:
        """Change the name, so that processes that mapped the old memory map it again."""
        self.name = f"{os.getpid()}-{next(_numbers)}"
        _shelves[self.name] = self

    def put(self, weights: Iterable[tuple[str, torch.Tensor]]) -> SharedWeights:
        """Copy weights one at a time, overwriting the previous version."""
        self.begin()
        for name, tensor in weights:
            self.room_for(name, tensor.dtype, tensor.shape, tensor.device).copy_(tensor.detach())
        return self.end()

    def begin(self) -> None:
        """Mark the weights as overwritten for all readers."""
        self._number = 0
        if self.buckets:
            _stamp(self.buckets[0]).fill_(-1)

    def room_for(self, name: str, dtype: torch.dtype, shape: Sequence[int], device: torch.device) -> torch.Tensor:
        """Return memory for the next weight, which is on `device`; the same as last time if the layout is unchanged."""
        place = self._place(name, str(dtype).removeprefix("torch."), tuple(shape), device)
        self._number += 1
        return _view(self.buckets[place.bucket], place)

    def renew(self) -> None:
        """Forget the memory, which is freed when no process maps it any more."""
        self._rename()
        self.buckets, self._handles, self._places = [], [], []
        self._number = self._end = 0

    def laid_out(self, places: tuple[Place, ...], device: torch.device) -> list[torch.Tensor]:
        """Allocate memory with the layout of another shelf, instead of calling `room_for`; return its buckets."""
        self.begin()
        if tuple(self._places) != places:
            self._rename()
            where = None if self.on_host or device.type == "cpu" else device
            made = [new_bucket(max(end, STAMP_BYTES), where) for _, end in spans(places)]
            self.buckets, self._handles = [bucket for bucket, _ in made], [handle for _, handle in made]
            self._places = list(places)
            self._end = _end_of(places[-1]) if places else 0
            self.begin()
        self._number = len(places)
        return self.buckets

    def end(self) -> SharedWeights:
        """Publish the weights after all of them are written."""
        if self._number < len(self._places):
            self._cut(self._number)
        if not self.buckets:
            self._add_bucket(STAMP_BYTES, None)
        self._count += 1
        # CUDA streams order nothing for other processes: wait for the weights before writing their stamp.
        _synchronize(self.buckets)
        _stamp(self.buckets[0]).fill_(self._count)
        _synchronize(self.buckets)
        return SharedWeights((Part(self.name, self._count, tuple(self._handles)),), tuple(self._places))

    def _place(self, name: str, dtype: str, shape: tuple[int, ...], device: torch.device) -> Place:
        """Return the place from last time, or a new one if the layout has changed."""
        if self._number < len(self._places):
            if self._places[self._number][:3] == (name, dtype, shape):
                return self._places[self._number]
            self._cut(self._number)
        place = Place(name, dtype, shape, 0, 0)
        where = None if self.on_host or device.type == "cpu" else device
        if not self._fits(place.num_bytes, where):
            self._add_bucket(place.num_bytes, where)
        place = place._replace(bucket=len(self.buckets) - 1, start=self._end)
        self._places.append(place)
        self._end = _end_of(place)
        return place

    def _fits(self, size: int, device: torch.device | None) -> bool:
        if not self.buckets or self._end + size > len(self.buckets[-1]):
            return False
        return self.buckets[-1].device.type == "cpu" if device is None else self.buckets[-1].device == device

    def _add_bucket(self, size: int, device: torch.device | None) -> None:
        bucket, handle = new_bucket(max(size + STAMP_BYTES, self._bucket_bytes), device)
        self.buckets.append(bucket)
        self._handles.append(handle)
        self._end = 0
        if len(self.buckets) == 1:
            _stamp(bucket).fill_(-1)
            self._end = STAMP_BYTES

    def _cut(self, number: int) -> None:
        """Forget the places from `number` on, and reuse their memory."""
        self._rename()
        del self._places[number:]
        last = self._places[-1] if self._places else None
        keep = last.bucket + 1 if last else min(len(self.buckets), 1)
        del self.buckets[keep:], self._handles[keep:]
        self._end = _end_of(last) if last else STAMP_BYTES


def _opened(part: Part, device: torch.device | None) -> list[torch.Tensor]:
    shelf = _shelves.get(part.shelf)
    if shelf is not None:
        return list(shelf.buckets)
    return [map_bucket(handle, device) for handle in part.buckets]


def spans(places: Sequence[Place]) -> list[tuple[int, int]]:
    """Return the used part of each bucket in bytes: (start, end)."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for place in places:
        starts[place.bucket] = min(place.start, starts.get(place.bucket, place.start))
        ends[place.bucket] = max(place.start + place.num_bytes, ends.get(place.bucket, 0))
    return [(starts.get(bucket, 0), ends.get(bucket, 0)) for bucket in range(max(ends, default=-1) + 1)]


def _shelves_of(shared: SharedWeights) -> list[str]:
    return [part.shelf for part in shared.parts]


def _end_of(place: Place) -> int:
    return place.start + -(-place.num_bytes // _ALIGNMENT) * _ALIGNMENT


def _view(bucket: torch.Tensor, place: Place) -> torch.Tensor:
    import torch

    return bucket[place.start : place.start + place.num_bytes].view(getattr(torch, place.dtype)).view(place.shape)


def _stamp(bucket: torch.Tensor) -> torch.Tensor:
    import torch

    return bucket[:8].view(torch.int64)


def _synchronize(buckets: list[torch.Tensor]) -> None:
    import torch

    for device in {bucket.device for bucket in buckets if bucket.is_cuda}:
        torch.cuda.synchronize(device)
