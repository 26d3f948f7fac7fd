"""Clean up after untrusted code: kill its processes and remove its directory."""

from __future__ import annotations

import _signal
import itertools
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def kill_namespace() -> None:
    """Kill all other processes of this pid namespace with one system call, which no process can outrun."""
    assert os.getpid() == 1, "kill(-1) anywhere else would reach the whole machine"
    try:
        os.kill(-1, _signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_descendants() -> None:
    """Kill all descendants of this process, a subreaper in a shared pid namespace.

    Call this until no descendant is left, since new ones may start meanwhile.
    """
    for pid in below(os.getpid()):
        try:
            os.kill(pid, _signal.SIGKILL)
        except ProcessLookupError:
            continue


def below(pid: int) -> list[int]:
    """Return the descendants of a process, each before its own."""
    found = []
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return []
    for child in children:
        found += [child, *below(child)]
    return found


def remove_directory(path: str) -> None:
    """Remove a directory of any depth with any modes. Raises `OSError` if something in it cannot be removed.

    Deep directories are moved to the top first, so that neither paths nor the stack grow with the depth.
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
    """Unlink the files of a directory, move its directories to `top`, and return their names there."""
    moved = []
    for name in os.listdir(directory):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            os.rename(name, new := next(names), src_dir_fd=directory, dst_dir_fd=top)
            moved.append(new)
        else:
            os.unlink(name, dir_fd=directory)
    return moved
