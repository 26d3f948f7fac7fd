"""Objects with large arrays, handed to other processes of this host: the arrays are written once and mapped by all."""

from __future__ import annotations

import mmap
import os
import pickle
import shutil
import tempfile
from dataclasses import dataclass
from typing import Any

_SHARED_MEMORY = "/dev/shm"
_ALIGNMENT = 64


@dataclass(slots=True, frozen=True)
class Parcel:
    """What travels: a pickle without its arrays, and where these are."""

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


def parcel(value: Any) -> Parcel:
    """Pickle a value; NumPy arrays in it go to shared memory, or to a temporary file where that is too small."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    if not any(array.nbytes for array in arrays):
        return Parcel(pickle.dumps(value, protocol=5), None, ())
    places = []
    end = 0
    for array in arrays:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + array.nbytes
        places.append((start, array.nbytes))
    with tempfile.NamedTemporaryFile(prefix="agentloop-batch-", dir=_folder(end), delete=False) as file:
        for array, (start, _) in zip(arrays, places, strict=True):
            file.seek(start)
            file.write(array)
        file.truncate(max(end, 1))
    return Parcel(pickled, file.name, tuple(places))


def _folder(size: int) -> str | None:
    """Shared memory where it has room; containers often have little."""
    has_room = os.access(_SHARED_MEMORY, os.W_OK) and shutil.disk_usage(_SHARED_MEMORY).free > 2 * size
    return _SHARED_MEMORY if has_room else None
