"""Copy the layer of a box, which has all differences from its image, into the layer of another box.

The stream has records: the length of a head in four bytes, the head in JSON, and the content of a file. Archives of
tarfile would take five times as long. An empty head ends the stream. It has files with owners, times and extended
attributes, and the marks of overlayfs: deleted files (devices 0:0), and directories that hide those of the image (an
attribute). User ids are those inside the boxes.
"""

from __future__ import annotations

import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

_OF_ONE_OVERLAY = "user.overlay."
_KEPT_OF_OVERLAY = frozenset(f"{_OF_ONE_OVERLAY}{name}" for name in ("opaque", "redirect", "whiteout", "whiteouts"))
"""Other attributes name the file of the image that a file came from, and are valid for one mount only."""
_LENGTH_BYTES = 4
_CHUNK = 1 << 18


def write(stream: BinaryIO, folder: int) -> None:
    """Write the content of a directory, given as a descriptor. Files deleted meanwhile are omitted. Raises `OSError`.

    The working directory of this process becomes `folder`.
    """
    os.fchdir(folder)
    seen: dict[int, str] = {}
    for path in _below("."):
        try:
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and (status.st_nlink == 1 or status.st_ino not in seen):
                _write_file(stream, path, seen)
            elif not stat.S_ISSOCK(status.st_mode):  # nothing listens in the copy
                _write_head(stream, _head(path, status, seen))
        except FileNotFoundError:
            continue
    stream.write(bytes(_LENGTH_BYTES))


def _below(folder: str) -> Iterator[str]:
    yield folder
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)
        else:
            yield entry.path


def _head(path: str, status: os.stat_result, seen: dict[int, str]) -> dict[str, Any]:
    head: dict[str, Any] = {"path": path, "mode": status.st_mode, "owner": [status.st_uid, status.st_gid]}
    head["time"] = status.st_mtime_ns
    if stat.S_ISLNK(status.st_mode):
        head["target"] = os.readlink(path)
    if not stat.S_ISDIR(status.st_mode) and (first := seen.setdefault(status.st_ino, path)) != path:
        head["link"] = first
    if attributes := _attributes(path):
        head["attributes"] = attributes
    return head


def _attributes(path: str) -> dict[str, str]:
    names = os.listxattr(path, follow_symlinks=False)
    kept = [name for name in names if not name.startswith(_OF_ONE_OVERLAY) or name in _KEPT_OF_OVERLAY]
    return {name: os.getxattr(path, name, follow_symlinks=False).hex() for name in kept}


def _write_head(stream: BinaryIO, head: dict[str, Any]) -> None:
    data = json.dumps(head).encode()
    stream.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


def _write_file(stream: BinaryIO, path: str, seen: dict[int, str]) -> None:
    """Write a file with its current length; if it shrinks meanwhile, the rest becomes zeros."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        _write_head(stream, {**_head(path, status, seen), "size": status.st_size})
        left = status.st_size
        while left:
            data = os.read(fd, min(left, _CHUNK)) or bytes(min(left, _CHUNK))
            stream.write(data)
            left -= len(data)
    finally:
        os.close(fd)


def read(stream: BinaryIO, folder: str) -> None:
    """Create the content of `folder` from a stream of `write`. Raises `OSError`.

    Meanwhile `folder` is the root directory (CAP_SYS_CHROOT), so no name or link of the stream leads out of it.
    """
    before = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chroot(folder)
    try:
        os.chdir("/")
        times = []
        while head := _read_head(stream):
            _make(stream, head)
            if stat.S_ISDIR(head["mode"]):
                times.append((head["path"], head["time"]))
        for path, time in reversed(times):  # new entries change the times of their directories
            os.utime(path, ns=(time, time))
    finally:
        os.fchdir(before)
        os.chroot(".")
        os.close(before)


def _read_head(stream: BinaryIO) -> dict[str, Any]:
    length = int.from_bytes(_read(stream, _LENGTH_BYTES), "big")
    head: dict[str, Any] = json.loads(_read(stream, length)) if length else {}
    return head


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise OSError("the copy of the box is incomplete")
    return data


def _make(stream: BinaryIO, head: dict[str, Any]) -> None:
    path, mode = head["path"], head["mode"]
    if "link" in head:
        os.link(head["link"], path, follow_symlinks=False)
        return
    if "target" in head:
        os.symlink(head["target"], path)
    elif "size" in head:
        _make_file(stream, path, head["size"])
    elif not stat.S_ISDIR(mode):
        os.mknod(path, mode)  # a FIFO, or the mark of a deleted file
    elif path != ".":
        os.mkdir(path)
    os.chown(path, *head["owner"], follow_symlinks=False)
    if not stat.S_ISLNK(mode):
        os.chmod(path, stat.S_IMODE(mode))
    for name, value in head.get("attributes", {}).items():
        os.setxattr(path, name, bytes.fromhex(value), follow_symlinks=False)
    os.utime(path, ns=(head["time"], head["time"]), follow_symlinks=False)


def _make_file(stream: BinaryIO, path: str, size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while size:
            data = _read(stream, min(size, _CHUNK))
            size -= len(data)
            while data:
                data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
