"""Descriptors that become readable when a child process ends."""

from __future__ import annotations

import _signal
import errno
import os

_children: dict[int, int] = {}  # pid -> writer of a pipe, for kernels without pidfd


def watch(pid: int) -> int:
    """Return a descriptor that becomes readable when a child ends; the caller closes it."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:  # gVisor has no pidfd
            raise
    reader, writer = os.pipe2(os.O_CLOEXEC)
    _children[pid] = writer
    _signal.signal(_signal.SIGCHLD, _look)
    _look()
    return reader


def forget() -> None:
    """Drop all watches, in a child that was just forked: they are not its children."""
    if _children:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        for writer in _children.values():
            os.close(writer)
        _children.clear()


def _look(*_: object) -> None:
    for pid in list(_children):
        try:
            has_ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # already reaped
            has_ended = True
        if has_ended:
            os.close(_children.pop(pid))
