"""Copy the layer of a box, which has all that differs from its image, into the layer of another one.

The stream is a tar archive with what overlayfs keeps there: files with owners, times and extended attributes, files
that are gone (devices 0:0), and directories that hide those of the image (an attribute). Users are those of the boxes.
"""

from __future__ import annotations

import os
import stat
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_ATTRIBUTE = "SCHILY.xattr."
"""Prefix by which tar archives keep extended attributes."""
_OF_ONE_OVERLAY = "user.overlay."
_KEPT_OF_OVERLAY = frozenset(f"{_OF_ONE_OVERLAY}{name}" for name in ("opaque", "redirect", "whiteout", "whiteouts"))
"""Others say which file of the image a file was, and hold for one mount."""


def write(stream: BinaryIO, folder: int) -> None:
    """Write the content of a directory, given as a descriptor. Files that go meanwhile are left out. Raises `OSError`.

    The working directory of this process becomes `folder`.
    """
    os.fchdir(folder)
    seen: dict[int, str] = {}
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in _below("."):
            try:
                _add(archive, path, seen)
            except FileNotFoundError:
                continue


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


def _add(archive: tarfile.TarFile, path: str, seen: dict[int, str]) -> None:
    status = os.lstat(path)
    if stat.S_ISSOCK(status.st_mode):
        return  # nobody listens in the copy
    member = tarfile.TarInfo(path)
    member.mode, member.uid, member.gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    member.mtime = status.st_mtime
    member.pax_headers = _attributes(path)
    if not stat.S_ISDIR(status.st_mode) and (first := seen.setdefault(status.st_ino, path)) != path:
        member.type, member.linkname = tarfile.LNKTYPE, first
        archive.addfile(member)
        return
    if stat.S_ISREG(status.st_mode):
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            member.size = os.fstat(file.fileno()).st_size
            archive.addfile(member, _Padded(file))
        return
    kinds = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFIFO: tarfile.FIFOTYPE}
    member.type = kinds.get(stat.S_IFMT(status.st_mode), tarfile.CHRTYPE)
    if member.type == tarfile.SYMTYPE:
        member.linkname = os.readlink(path)
    archive.addfile(member)


def _attributes(path: str) -> dict[str, str]:
    names = os.listxattr(path, follow_symlinks=False)
    kept = [name for name in names if not name.startswith(_OF_ONE_OVERLAY) or name in _KEPT_OF_OVERLAY]
    return {_ATTRIBUTE + name: os.fsdecode(os.getxattr(path, name, follow_symlinks=False)) for name in kept}


class _Padded:
    """A file that has zeros after its end, in case it became shorter after it was measured."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = 0, /) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


def read(stream: BinaryIO, folder: str) -> None:
    """Make the content of `folder` from a stream of `write`. Raises `OSError`.

    `folder` is the root directory meanwhile, which needs a right: no name or link of the stream leads out of it.
    """
    before = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chroot(folder)
    try:
        os.chdir("/")
        _unpack(stream)
    finally:
        os.fchdir(before)
        os.chroot(".")
        os.close(before)


def _unpack(stream: BinaryIO) -> None:
    folders = []
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                archive.extract(member, ".", numeric_owner=True, filter="fully_trusted")
                for name, value in member.pax_headers.items():
                    if name.startswith(_ATTRIBUTE):
                        name = name.removeprefix(_ATTRIBUTE)
                        os.setxattr(member.name, name, os.fsencode(value), follow_symlinks=False)
                if member.isdir():
                    folders.append(member)
    except tarfile.TarError as error:
        raise OSError(f"the copy of the box did not arrive whole: {error}") from error
    for member in reversed(folders):  # what is made in them changes their times
        os.utime(member.name, (member.mtime, member.mtime))
