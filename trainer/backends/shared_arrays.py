"""Objects with large arrays, handed to other processes: the arrays are written once on each host and mapped by all."""

from __future__ import annotations

import mmap
import os
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHARED_MEMORY = "/dev/shm"
_ALIGNMENT = 64


@dataclass(slots=True, frozen=True)
class Parcel:
    """What travels on one host: a pickle without its arrays, and where these are."""

    pickled: bytes
    path: str | None
    """File with the arrays, None where there are none; whoever sent it removes it."""
    places: tuple[tuple[int, int], ...]
    """(start, size) of each array, in bytes."""

    def open(self) -> Any:
        """The object. Its arrays are this process's own to write to, and copied where it does."""
        if self.path is None:
            return pickle.loads(self.pickled)
        with open(self.path, "rb") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        return pickle.loads(self.pickled, buffers=[memory[start : start + size] for start, size in self.places])

    def remove(self) -> None:
        """What has opened it keeps its arrays."""
        if self.path is not None:
            os.unlink(self.path)


@dataclass(slots=True, frozen=True, eq=False, weakref_slot=True)
class Packed:
    """An object on its way to other hosts: a pickle without its arrays, and the bytes of these."""

    pickled: bytes
    arrays: Sequence[NDArray[np.uint8]]

    def share(self) -> Parcel:
        """Arrays go to the shared memory of this host, or to a temporary file where that is too small."""
        if not self.arrays:
            return Parcel(self.pickled, None, ())
        places = []
        end = 0
        for array in self.arrays:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + array.nbytes
            places.append((start, array.nbytes))
        with tempfile.NamedTemporaryFile(prefix="agentloop-batch-", dir=_folder(end), delete=False) as file:
            for array, (start, _) in zip(self.arrays, places, strict=True):
                file.seek(start)
                file.write(array.data)
            file.truncate(max(end, 1))
        return Parcel(self.pickled, file.name, tuple(places))


def pack(value: Any) -> Packed:
    """Pickle a value; NumPy arrays in it are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    if not any(array.nbytes for array in arrays):
        return Packed(pickle.dumps(value, protocol=5), ())
    return Packed(pickled, arrays)


def _folder(size: int) -> str | None:
    """Shared memory where it has room; containers often have little."""
    has_room = os.access(_SHARED_MEMORY, os.W_OK) and shutil.disk_usage(_SHARED_MEMORY).free > 2 * size
    return _SHARED_MEMORY if has_room else None
