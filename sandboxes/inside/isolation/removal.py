"""Remove a directory whatever code has made in it: any depth, any modes."""

from __future__ import annotations

import itertools
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def remove(path: str) -> None:
    """Raises `OSError` where something in it cannot be removed.

    What lies deep is moved to the top first, so that neither paths nor the stack grow with the depth.
    """
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    names = (f"removed-{number}-{os.urandom(8).hex()}" for number in itertools.count())
    try:
        waiting = _empty(top, top, names)
        while waiting:
            name = waiting.pop()
            os.chmod(name, 0o700, dir_fd=top)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
            try:
                waiting += _empty(below, top, names)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _empty(directory: int, top: int, names: Iterator[str]) -> list[str]:
    """Unlink its files and move its directories to `top`: what these are called there."""
    moved = []
    for name in os.listdir(directory):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            os.rename(name, new := next(names), src_dir_fd=directory, dst_dir_fd=top)
            moved.append(new)
        else:
            os.unlink(name, dir_fd=directory)
    return moved
