"""`ImageStore`: root file systems on this machine, made once for all processes and kept by their content."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agentloop.boxes.images import busybox
from agentloop.boxes.interface.spec import Image
from agentloop.errors import UserError


@dataclass(slots=True, frozen=True, kw_only=True)
class StoredImage:
    """An image that is ready for boxes."""

    layers: tuple[str, ...]
    """Directories of the root file system, the uppermost first."""
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None


class ImageStore:
    """Images below a folder, by default that of the user's caches. Every method blocks."""

    def __init__(self, folder: Path | None = None) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = folder or Path(cache) / "agentloop" / "boxes"

    def get(self, image: Image) -> StoredImage:
        """Return an image, which is made if it is not there yet. Raises `UserError` if it cannot be had."""
        if image.tree is not None:
            return _tree(image.tree)
        if image.tarball is not None:
            return self._tarball(image.tarball)
        if image.reference == busybox.NAME:
            return self._once(busybox.key(), busybox.fill)
        what = f"{image.reference!r}" if image.reference is not None else f"a Dockerfile ({image.dockerfile})"
        raise UserError(
            f"The provider rootfs cannot make boxes from {what}. Give a root file system as a directory or a tar "
            f"archive (`docker export CONTAINER > image.tar`), or {busybox.NAME}."
        )

    def _tarball(self, path: Path) -> StoredImage:
        if not path.is_file():
            raise UserError(f"There is no file {path} to make boxes from: correct the path of the image.")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return self._once(digest, lambda tree: _unpack(path, tree))

    def _once(self, key: str, make: Callable[[Path], StoredImage | None]) -> StoredImage:
        """Return the image of this key. `make` fills its directory if there is none; others wait for it."""
        home = self.folder / key
        record = home / "image.json"
        if not record.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / f"{key}.lock"):
                if not record.is_file():
                    shutil.rmtree(home, ignore_errors=True)  # left by a process that was killed
                    (home / "tree").mkdir(parents=True)
                    image = make(home / "tree") or StoredImage(layers=(str(home / "tree"),))
                    part = Path(tempfile.mkstemp(dir=home)[1])
                    part.write_text(json.dumps(asdict(image)))
                    part.rename(record)
        values = json.loads(record.read_text())
        return StoredImage(**values | {"layers": tuple(values["layers"])})


def _tree(path: Path) -> StoredImage:
    if not path.is_dir():
        raise UserError(f"There is no directory {path} to make boxes from: correct the path of the image.")
    return StoredImage(layers=(str(path.resolve()),))


def _unpack(path: Path, tree: Path) -> None:
    """Unpack an archive with its owners and modes as far as this user may. Raises `UserError` if it is damaged."""
    try:
        with tarfile.open(path) as archive:
            is_root = os.geteuid() == 0
            for member in archive:
                if member.ischr() or member.isblk():
                    continue  # a box has its own devices
                if not is_root:
                    member.uid, member.gid = os.geteuid(), os.getegid()
                    member.uname = member.gname = ""
                archive.extract(member, tree, numeric_owner=True, filter="tar")
    except (tarfile.TarError, EOFError) as error:
        raise UserError(f"{path} is not a root file system that tar can unpack: {error}.") from error
    tree.chmod(0o755)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
