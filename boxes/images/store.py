"""`ImageStore`: root file systems on this machine, made once for all processes and kept by their content."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agentloop.boxes.images import busybox
from agentloop.boxes.images.buildah import Buildah, Pulled
from agentloop.boxes.images.layers import unpack
from agentloop.boxes.images.python import PythonImage
from agentloop.boxes.interface.spec import Image
from agentloop.errors import UserError

BUILTIN = "builtin:"
"""Prefix of images that are made from this machine's programs."""


@dataclass(slots=True, frozen=True, kw_only=True)
class StoredImage:
    """An image that is ready for boxes."""

    layers: tuple[str, ...]
    """Directories of the root file system, uppermost first."""
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None


class ImageStore:
    """Images below a folder, by default that of the user's caches. Every method blocks."""

    def __init__(self, folder: Path | None = None) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = folder or Path(cache) / "agentloop" / "boxes"
        self._buildah = Buildah(self.folder / "buildah")
        self._digests: dict[tuple[str, int, int], str] = {}

    def get(self, image: Image) -> StoredImage:
        """Return an image; make it if it is missing. Raises `UserError` if it is unavailable."""
        if image.tree is not None:
            return _tree(image.tree)
        if image.tarball is not None:
            return self._tarball(image.tarball)
        if image.reference is not None and image.reference.startswith(BUILTIN):
            return self._builtin(image.reference)
        if image.reference is not None:
            key = f"pulled-{_short(image.reference.encode())}"
            return self._layered(key, lambda layout: self._buildah.pull(str(image.reference), layout))
        assert image.dockerfile is not None
        context = image.dockerfile
        return self._layered(f"built-{_digest_of_folder(context)}", lambda layout: self._buildah.build(context, layout))

    def _builtin(self, reference: str) -> StoredImage:
        if reference == busybox.NAME:
            return self._once(busybox.key(), lambda home: _single(home, busybox.fill))
        python = PythonImage.parse(reference)
        return self._once(python.key(), lambda home: _single(home, python.fill))

    def _tarball(self, path: Path) -> StoredImage:
        if not path.is_file():
            raise UserError(f"The image {path} is not a file: correct its path.")
        status = path.stat()
        known = (str(path), status.st_mtime_ns, status.st_size)
        if known not in self._digests:
            with path.open("rb") as file:
                self._digests[known] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._once(self._digests[known], lambda home: _single(home, lambda tree: unpack(path, tree)))

    def _layered(self, key: str, make: Callable[[Path], Pulled]) -> StoredImage:
        """Return an image of several layers, each of which is unpacked once for all images that share it."""

        def store(home: Path) -> StoredImage:
            with tempfile.TemporaryDirectory(dir=home) as layout:
                pulled = make(Path(layout))
                layers = [self._layer(digest, path) for digest, path in pulled.layers]
            return StoredImage(layers=tuple(reversed(layers)), env=pulled.env, workdir=pulled.workdir, user=pulled.user)

        return self._once(key, store)

    def _layer(self, digest: str, path: Path) -> str:
        """Return the directory of a layer."""
        return self._once(digest, lambda home: _single(home, lambda tree: unpack(path, tree, is_layer=True))).layers[0]

    def _once(self, key: str, make: Callable[[Path], StoredImage]) -> StoredImage:
        """Return the image of this key. `make` fills its directory if there is none; others wait for it."""
        home = self.folder / key
        record = home / "image.json"
        if not record.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / f"{key}.lock"):
                if not record.is_file():
                    shutil.rmtree(home, ignore_errors=True)  # left by a process that was killed
                    try:
                        home.mkdir()
                        image = make(home)
                        part = home / "image.part"
                        part.write_text(json.dumps(asdict(image)))
                        part.rename(record)
                    except OSError as error:
                        shutil.rmtree(home, ignore_errors=True)
                        raise UserError(
                            f"The image of a box cannot be stored in {self.folder}: {error}. Free space there, or set "
                            "the option `folder` of the provider rootfs to another disk."
                        ) from error
        values = json.loads(record.read_text())
        return StoredImage(**values | {"layers": tuple(values["layers"])})


def _single(home: Path, fill: Callable[[Path], None]) -> StoredImage:
    """Return an image of one layer, which `fill` writes."""
    tree = home / "tree"
    tree.mkdir()
    fill(tree)
    return StoredImage(layers=(str(tree),))


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]


def _digest_of_folder(folder: Path) -> str:
    """Return a digest of the names, modes and contents of all files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            content = os.readlink(path).encode()
        elif path.is_file():
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        else:
            content = b""
        digest.update(f"{path.relative_to(folder)}\0{path.lstat().st_mode}\0".encode() + content)
    return digest.hexdigest()[:20]


def _tree(path: Path) -> StoredImage:
    if not path.is_dir():
        raise UserError(f"The image {path} is not a directory: correct its path.")
    return StoredImage(layers=(str(path.resolve()),))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
