"""Write files and folders atomically: they are complete or absent even if the process is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def unfinished(path: Path) -> Path:
    """Return the hidden sibling, with the same suffix, that is written and then renamed to `path`."""
    return path.with_name(f".tmp-{path.name}")


def replaced(path: Path) -> Path:
    """Return the hidden sibling to which a folder is renamed before it is removed."""
    return path.with_name(f".old-{path.name}")


@contextmanager
def atomic_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling to write; it replaces `path` when the block ends without an error.

    Leftovers of a killed process are removed first. `durable` waits until the content is on disk. Missing parent
    folders are created.
    """
    path = Path(os.path.abspath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = unfinished(path)
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        if durable:
            _sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Replace a text file; the new content is on disk when this returns."""
    with atomic_file(path, durable=True) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary sibling to fill; it replaces `folder` once all its files are on disk.

    A process that is killed leaves the old `folder`, or, between the two renames, a hidden copy of it named `.old-`.
    Leftovers of a killed process are removed first. Missing parent folders are created. Files get the mode of the
    umask, because some libraries make theirs readable only by their owner.
    """
    folder = Path(os.path.abspath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = unfinished(folder), replaced(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        mode = temporary.stat().st_mode & 0o666
        for path in [*temporary.rglob("*"), temporary]:
            if path.is_file() and not path.is_symlink():
                path.chmod(mode)
            _sync(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    temporary.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
