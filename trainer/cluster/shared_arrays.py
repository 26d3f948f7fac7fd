"""Objects with large arrays, handed to other processes: the arrays are written once on each host and mapped by all."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentloop.weights.buckets import HostHandle

_ALIGNMENT = 64


@dataclass(slots=True, frozen=True)
class Parcel:
    """What travels on one host: a pickle without its arrays, and where these are."""

    pickled: bytes
    memory: HostHandle | None
    """Of the arrays, without a name in any folder: it is gone with those that have it, however they end. None where
    there are none; whoever sent it removes it."""
    places: tuple[tuple[int, int], ...]
    """(start, size) of each array, in bytes."""

    def open(self) -> Any:
        """The object. Its arrays are this process's own to write to, and copied where it does."""
        if self.memory is None:
            return pickle.loads(self.pickled)
        with open(self.memory.path, "rb") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        return pickle.loads(self.pickled, buffers=[memory[start : start + size] for start, size in self.places])

    def remove(self) -> None:
        """What has opened it keeps its arrays."""
        if self.memory is not None:
            os.close(self.memory.descriptor)


@dataclass(slots=True, frozen=True, eq=False, weakref_slot=True)
class Packed:
    """An object on its way to other hosts: a pickle without its arrays, and the bytes of these."""

    pickled: bytes
    arrays: Sequence[NDArray[np.uint8]]

    def share(self) -> Parcel:
        """For the processes of this host."""
        if not self.arrays:
            return Parcel(self.pickled, None, ())
        places = []
        end = 0
        for array in self.arrays:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + array.nbytes
            places.append((start, array.nbytes))
        descriptor = os.memfd_create("agentloop-batch")
        with open(descriptor, "wb", closefd=False) as file:
            for array, (start, _) in zip(self.arrays, places, strict=True):
                file.seek(start)
                file.write(array.data)
            file.truncate(max(end, 1))
        return Parcel(self.pickled, HostHandle(os.getpid(), descriptor, end), tuple(places))


def pack(value: Any) -> Packed:
    """Pickle a value; NumPy arrays in it are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    if not any(array.nbytes for array in arrays):
        return Packed(pickle.dumps(value, protocol=5), ())
    return Packed(pickled, arrays)
