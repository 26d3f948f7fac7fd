"""Transfer files into and out of a world. This code runs confined, as the user of the code."""

from __future__ import annotations

import os
import stat
from os import close, fsencode
from os import open as open_file
from os import write as write_some

from agentloop.sandboxes.inside import channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_CHUNK = 1 << 20
_ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC


def write(files: Sequence[tuple[str, bytes]]) -> None:
    """Write files of the request; relative paths are below the current directory. Raises `OSError`."""
    for path, content in files:
        file = _new(path)
        try:
            _all(file, content)
        finally:
            close(file)


def write_packed(payload: int) -> None:
    """Write files packed by `channel.pack`. Raises `OSError`."""
    entries, offset = channel.unpack(payload)
    for path, size in entries:
        file = _new(path)
        try:
            end = offset + size
            while offset < end:
                offset += os.sendfile(file, payload, offset, min(end - offset, _CHUNK))
        finally:
            os.close(file)


def _new(path: str) -> int:
    name = fsencode(path)  # paths are bytes to the kernel: surrogates stand for bytes that are not UTF-8
    if b"/" in name and (directory := os.path.dirname(name)):
        os.makedirs(directory, exist_ok=True)
    # Existing files are truncated, also through a link that the code made; that can harm only the code.
    return open_file(name, _ANEW, 0o644)


def read(paths: Sequence[str], out: int, limit: int) -> None:
    """Stream the regular files among the paths into `out`, each after a line with its index in `paths` and its size.

    A file that does not fit into the rest of `limit` bytes has the size -1. A file that shrinks meanwhile is padded
    with zeros.
    """
    for index, path in enumerate(paths):
        try:
            file = os.open(os.fsencode(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and not _of_kernel(file):
                size = status.st_size if status.st_size <= limit else -1
                _all(out, b"%d %d\n" % (index, size))
                if size > 0:
                    _copy(file, out, size)
                    limit -= size
        finally:
            os.close(file)


def _of_kernel(file: int) -> bool:
    """Return whether a file is in /proc. Such files claim to be regular and empty, but some never end."""
    return os.readlink(f"/proc/self/fd/{file}").startswith("/proc/")


def _copy(file: int, out: int, size: int) -> None:
    while size:
        data = os.read(file, min(size, _CHUNK)) or bytes(min(size, _CHUNK))
        _all(out, data)
        size -= len(data)


def _all(out: int, data: bytes) -> None:
    written = write_some(out, data)
    while written < len(data):
        written += write_some(out, memoryview(data)[written:])
