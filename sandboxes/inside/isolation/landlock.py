"""Landlock: permanently give up files, TCP and signals, without any privilege.

Paths that `restrict` does not name cannot be opened, created, removed or executed. Their metadata can still be read
(`stat`) and, if the user may, changed. So `levels.seccomp` refuses the system calls that change it.
https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import stat
import struct
from collections.abc import Callable, Iterable

MIN_ABI = 6
"""ABI of Linux 6.12. In older ones, code can signal every process of its user."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM, _REFER, _TRUNCATE = 1 << 9, 1 << 10, 1 << 12, 1 << 13, 1 << 14
_ALL_OF_FILES = (1 << 16) - 1
"""All file rights of ABI 6, IOCTL_DEV included."""
_ALL_OF_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = (
    _READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO
) | (_MAKE_SYM | _REFER)

libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """Return the version of Landlock in this kernel; 0 if it has none or was booted without it."""
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 0 and ctypes.get_errno() not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        _raise("the version of Landlock")
    return max(0, version)


def restrict(
    readable: Iterable[str], writable: Iterable[str], listable: Iterable[str] = (), processes: int = 0
) -> None:
    """Restrict this thread, and everything that it starts, to these paths and the paths below them.

    `readable` paths can be read and executed. `writable` paths can be used in every way except for creating devices.
    `listable` paths can be listed. TCP ports, and abstract Unix sockets of others, cannot be reached. Signals reach
    only processes under the same restriction, or under a further one below it. `processes`, if not 0, is the number of
    processes that the user may have in addition to the present ones.

    A second call restricts further. Raises `OSError`; the process is then unchanged, except for `no_new_privs`.
    """
    if processes:
        limit = _processes_of_user() + processes
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    attributes = struct.pack("=QQQ", _ALL_OF_FILES, _ALL_OF_TCP, _ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        _raise("a Landlock ruleset")
    try:
        for paths, access in ((readable, _READ), (writable, _WRITE), (listable, _READ_DIR)):
            for path in paths:
                _allow(ruleset, path, access)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
            _raise("no_new_privs")
        if libc.syscall(_RESTRICT_SELF, ruleset, 0) < 0:
            _raise("the restriction by Landlock")
    finally:
        os.close(ruleset)


def enclose() -> Callable[[], None]:
    """Restrict this process so that it can signal only its descendants; return a function that kills them all.

    The function uses one system call, which no process can outrun. Restrict the descendants once more, so that they
    cannot signal this process. Raises `OSError`.
    """
    restrict((), ("/",))
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return _kill_enclosed
    raise OSError(errno.ENOTSUP, "the kernel lets signals out of a Landlock restriction")


def _kill_enclosed() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _processes_of_user() -> int:
    """Return how many processes and threads the kernel counts for the real user of this process."""
    user, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # the process has ended
                continue
    return count


def _allow(ruleset: int, path: str, access: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _OF_A_FILE
        if libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, fd), 0) < 0:
            _raise(f"the Landlock rule of {path}")
    finally:
        os.close(fd)


def _raise(what: str) -> None:
    error = ctypes.get_errno()
    raise OSError(error, f"{what}: {os.strerror(error)}")
