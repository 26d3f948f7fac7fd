"""Unpack archives and layers of images into directories, with owners and modes as far as this user may set them."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from agentloop.errors import UserError

_DELETED = ".wh."
_OPAQUE = ".wh..wh..opq"
_OPAQUE_ATTRIBUTE = "user.overlay.opaque"
"""Attribute of a directory that hides the layers below; overlays mounted with `userxattr` support it."""
_NO_FILES = ("", ".", "..")
"""Last parts of paths that refer to a parent directory."""


def unpack(path: Path, tree: Path, *, is_layer: bool = False) -> None:
    """Unpack a root file system, or a layer (https://github.com/opencontainers/image-spec, layer.md), to a directory.

    In a layer, names that begin with .wh. mark deletions from the layers below, which overlays apply. Devices are
    left out because a box has its own. Raises `UserError` if the archive is damaged, or leads out of the directory.
    """
    is_root = os.geteuid() == 0
    deletions = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if is_layer and os.path.basename(member.name).startswith(_DELETED):
                    deletions.append(member)
                elif not (member.ischr() or member.isblk()):
                    if not is_root:
                        member.uid, member.gid = os.geteuid(), os.getegid()
                        member.uname = member.gname = ""
                    archive.extract(member, tree, numeric_owner=True, filter=_with_mode)
        for member in deletions:  # last: they do not affect files of their own layer
            _delete(tree, member)
    except (tarfile.TarError, EOFError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise UserError(f"{path} is not a root file system that tar can unpack: {error}.") from error
    tree.chmod(0o755)


def _with_mode(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo | None:
    """Refuse paths out of the directory; keep mode bits that the standard filter removes, such as set-uid."""
    checked = tarfile.tar_filter(member, target)
    if member.islnk():  # the standard filter lets it name any file of this machine
        folder, name = os.path.split(os.path.join(target, member.linkname))
        original = os.path.join(os.path.realpath(folder), name)  # a hard link to a symbolic link does not follow it
        if name in _NO_FILES or not original.startswith(os.path.join(os.path.realpath(target), "")):
            raise tarfile.LinkOutsideDestinationError(member, original)
    return checked.replace(mode=member.mode, deep=False)


def _delete(tree: Path, member: tarfile.TarInfo) -> None:
    """Hide a file, or the content of a directory, of the layers below."""
    checked = tarfile.tar_filter(member, str(tree))
    folder = (tree / checked.name).parent
    hidden = os.path.basename(member.name).removeprefix(_DELETED)
    if os.path.basename(member.name) == _OPAQUE:
        folder.mkdir(parents=True, exist_ok=True)
        os.setxattr(folder, _OPAQUE_ATTRIBUTE, b"y")
    elif hidden in _NO_FILES:
        raise tarfile.OutsideDestinationError(member, str(folder / hidden))
    elif not hidden.startswith(_DELETED):  # else metadata of other programs
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hidden
        if path.is_dir() and not path.is_symlink():
            os.setxattr(path, _OPAQUE_ATTRIBUTE, b"y")
        elif not os.path.lexists(path):
            os.mknod(path, 0o20000, 0)  # a whiteout of overlayfs, which any user may make
