"""Pack files for a box, and unpack files from a box. Both block."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO

from agentloop.boxes.interface.box import BoxError

_MOST_FILES = 1_000_000


def pack(source: Path, target: PurePosixPath, stream: IO[bytes]) -> str:
    """Write a file, or the content of a directory, as a tar stream that becomes `target` in a box.

    Returns the directory of the box to unpack the stream in. Root owns all files. Raises `BoxError`.
    """
    if not source.exists():
        raise BoxError(f"{source} does not exist, so it cannot be copied into the box.")
    is_directory = source.is_dir()
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for path in sorted(source.iterdir()) if is_directory else [source.resolve()]:
            archive.add(path, arcname=path.name if is_directory else target.name, filter=_owned_by_root)
    stream.flush()
    stream.seek(0)
    return str(target if is_directory else target.parent)


def pack_tree(folder: Path) -> io.BufferedIOBase:
    """Return a tar stream of a root file system, with its owners. The caller closes it."""
    stream = tempfile.TemporaryFile()  # noqa: SIM115
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, arcname=path.name)
    stream.seek(0)
    return stream


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def archive_limit(max_bytes: int) -> int:
    """Return the length at which reading an archive stops: `max_bytes` and its headers. `unpack` counts exactly."""
    return 2 * max_bytes + (1 << 20)


def too_large(source: str, max_bytes: int) -> BoxError:
    """Return the error for a file or directory of a box with more than `max_bytes`."""
    return BoxError(f"{source} of the box is larger than {max_bytes} bytes, so it was not copied.")


def unpack(stream: IO[bytes], source: str, target: Path, max_bytes: int, *, is_file: bool, below: str = "") -> None:
    """Unpack the stream that a box sent for `source`. Nothing in it is trusted. Raises `BoxError`.

    Links, devices and sockets are left out; hard links become copies. `below` is the first part of all names in
    the stream and is removed.
    """
    stream.seek(0)
    total = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    if not is_file:
        target.mkdir(exist_ok=True)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for count, member in enumerate(archive):
                total += member.size
                if total > max_bytes or count > _MOST_FILES:
                    raise too_large(source, max_bytes)
                name = _inside(member.name, below)
                if is_file and (content := archive.extractfile(member)) is not None:
                    with target.open("wb") as file:
                        shutil.copyfileobj(content, file)
                elif is_file or not name:
                    continue
                elif member.islnk():
                    _copy(target, _inside(member.linkname, below), name)
                elif member.isreg() or member.isdir():
                    archive.extract(member.replace(name=name, deep=False), target, filter="data")
    except tarfile.TarError as error:
        raise BoxError(f"{source} of the box cannot be copied: {error}.") from error


def _inside(name: str, below: str) -> str:
    """Return a name without its first part, if that is `below`."""
    first, _, rest = name.partition("/")
    return rest if below and first == below else name


def _copy(folder: Path, original: str, name: str) -> None:
    """Copy a file already unpacked below `folder`. Skip names outside the folder and names that are not files."""
    top = os.path.realpath(folder)
    paths = [os.path.realpath(os.path.join(top, each)) for each in (original, name)]
    if all(path.startswith(f"{top}/") for path in paths) and os.path.isfile(paths[0]) and not os.path.exists(paths[1]):
        os.makedirs(os.path.dirname(paths[1]), exist_ok=True)
        shutil.copyfile(*paths)
