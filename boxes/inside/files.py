"""Copy files into a box and out of it, as tar streams. Runs inside, so no link of the box leads out of it."""

from __future__ import annotations

import os
import tarfile

SINGLE_FILE = 3
"""Exit status of a transfer out of the box if its source was one file."""
TOO_LARGE = 4
"""Exit status of a transfer out of the box that was stopped because the archive became too large."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO


class TooLargeError(OSError):
    """An archive became larger than its limit."""


class _Limited:
    """Stream of at most so many bytes. It counts what is written, because a sparse file takes no space in the box."""

    def __init__(self, stream: BinaryIO, max_bytes: int) -> None:
        self._stream = stream
        self._left = max_bytes

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise TooLargeError
        return self._stream.write(data)


def receive(stream: BinaryIO, target: str) -> None:
    """Unpack a tar stream into the directory `target`, which is created. Root owns everything. Raises `OSError`."""
    os.makedirs(target, exist_ok=True)
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            path = os.path.join(target, member.name)
            if os.path.lexists(path) and not (member.isdir() and os.path.isdir(path)):
                os.unlink(path)  # else the content would go to the target of a link
            archive.extract(member, target, numeric_owner=True, filter="fully_trusted")


def send(stream: BinaryIO, source: str, max_bytes: int) -> bool:
    """Write a file, or the content of a directory, as a tar stream; return whether it is a directory.

    Links and special files are left out. Raises `OSError`, and `TooLargeError` if the archive has more bytes.
    """
    is_directory = os.path.isdir(source)
    limited: Any = _Limited(stream, max_bytes)  # the archive calls nothing but write
    with tarfile.open(fileobj=limited, mode="w|") as archive:
        if is_directory:
            _add_content(archive, source, "")
        else:
            _add_file(archive, source, "file")
    return is_directory


def _add_content(archive: tarfile.TarFile, folder: str, name: str) -> None:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        below = f"{name}/{entry.name}" if name else entry.name
        if entry.is_dir(follow_symlinks=False):
            member = tarfile.TarInfo(below)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
            _add_content(archive, entry.path, below)
        elif entry.is_file(follow_symlinks=False):
            _add_file(archive, entry.path, below)


def _add_file(archive: tarfile.TarFile, path: str, name: str) -> None:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = status.st_size, status.st_mode & 0o777, int(status.st_mtime)
        archive.addfile(member, file)
