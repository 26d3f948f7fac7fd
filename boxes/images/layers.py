"""Unpack archives and layers of images into directories, with owners and modes as far as this user may."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from agentloop.errors import UserError

_DELETED = ".wh."
_OPAQUE = ".wh..wh..opq"
_OPAQUE_ATTRIBUTE = "user.overlay.opaque"
"""Says that nothing of the layers below shows in a directory; overlays mounted with `userxattr` know it."""


def unpack(path: Path, tree: Path, *, is_layer: bool = False) -> None:
    """Unpack a root file system, or a layer (https://github.com/opencontainers/image-spec, layer.md), to a directory.

    In a layer, names that begin with .wh. say what it deletes from the layers below; overlays show that. Devices are
    left out: a box has its own. Raises `UserError` if the archive is damaged, or leads out of the directory.
    """
    is_root = os.geteuid() == 0
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = os.path.basename(member.name)
                if is_layer and name.startswith(_DELETED):
                    _delete(tree, member)
                elif not (member.ischr() or member.isblk()):
                    if not is_root:
                        member.uid, member.gid = os.geteuid(), os.getegid()
                        member.uname = member.gname = ""
                    archive.extract(member, tree, numeric_owner=True, filter=_with_mode)
    except (tarfile.TarError, EOFError) as error:
        raise UserError(f"{path} is not a root file system that tar can unpack: {error}.") from error
    tree.chmod(0o755)


def _with_mode(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo | None:
    """Refuse what leads out of the directory; keep bits of modes that the usual filter removes, such as set-uid."""
    checked = tarfile.tar_filter(member, target)
    if member.islnk():  # the usual filter lets it name any file of this machine
        original = os.path.realpath(os.path.join(target, member.linkname))
        if not original.startswith(os.path.join(os.path.realpath(target), "")):
            raise tarfile.LinkOutsideDestinationError(member, original)
    return checked.replace(mode=member.mode, deep=False)


def _delete(tree: Path, member: tarfile.TarInfo) -> None:
    """Make what hides a file, or the content of a directory, of the layers below."""
    name = os.path.basename(member.name)
    checked = tarfile.tar_filter(member, str(tree))
    folder = (tree / checked.name).parent
    folder.mkdir(parents=True, exist_ok=True)
    if name == _OPAQUE:
        os.setxattr(folder, _OPAQUE_ATTRIBUTE, b"y")
        return
    hidden = folder / name.removeprefix(_DELETED)
    if hidden.is_dir() and not hidden.is_symlink():
        shutil.rmtree(hidden)
    hidden.unlink(missing_ok=True)
    os.mknod(hidden, 0o20000, 0)  # a whiteout of overlayfs, which any user may make
