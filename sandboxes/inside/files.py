"""Files into a world and out of it. Runs confined, as the user that the code is."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence

_CHUNK = 1 << 20


def write(payload: int, entries: Sequence[tuple[str, int]], offset: int) -> None:
    """Write what `channel.pack` has packed and `channel.unpack` has found; relative paths are below the current
    directory. Raises `OSError`."""
    for path, size in entries:
        name = os.fsencode(path)
        if directory := os.path.dirname(name):
            os.makedirs(directory, exist_ok=True)
        # Anew where there is one: writing through a link of the code's would do no harm, but surprise.
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            end = offset + size
            while offset < end:
                offset += os.sendfile(file, payload, offset, min(end - offset, _CHUNK))
        finally:
            os.close(file)


def read(entries: Sequence[tuple[str, int]], out: int, limit: int) -> None:
    """Stream the regular files among the paths into `out`, each after a line [path, size] in JSON.

    A file that does not fit into what is left of `limit` bytes has the size -1. One that shrinks meanwhile is filled up
    with zeros.
    """
    for path, _ in entries:
        try:
            file = os.open(os.fsencode(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and not _of_kernel(file):
                size = status.st_size if status.st_size <= limit else -1
                _all(out, json.dumps([path, size]).encode() + b"\n")
                if size > 0:
                    _copy(file, out, size)
                    limit -= size
        finally:
            os.close(file)


def _of_kernel(file: int) -> bool:
    """Files of /proc say that they are regular and empty, and some of them never end."""
    return os.readlink(f"/proc/self/fd/{file}").startswith("/proc/")


def _copy(file: int, out: int, size: int) -> None:
    while size:
        data = os.read(file, min(size, _CHUNK)) or bytes(min(size, _CHUNK))
        _all(out, data)
        size -= len(data)


def _all(out: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]
