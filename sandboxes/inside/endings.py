"""Descriptors that become readable when a child process ends."""

from __future__ import annotations

import _signal
import errno
import os

_children: dict[int, int] = {}  # by pid, where the kernel has no pidfd


def watch(pid: int) -> int:
    """A descriptor that is readable from the end of a child on; the caller closes it."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:  # gVisor has none
            raise
    reader, writer = os.pipe2(os.O_CLOEXEC)
    _children[pid] = writer
    _signal.signal(_signal.SIGCHLD, _look)
    _look()
    return reader


def forget() -> None:
    """In a child that was just forked: those who are watched are not its own."""
    if _children:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        for writer in _children.values():
            os.close(writer)
        _children.clear()


def _look(*_: object) -> None:
    for pid in list(_children):
        try:
            has_ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # and somebody was faster
            has_ended = True
        if has_ended:
            os.close(_children.pop(pid))
