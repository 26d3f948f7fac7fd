"""Landlock: a process gives up files, TCP and signals for good, without any privilege.

What is not named in `restrict` cannot be opened, made, removed or executed. It stays possible to look up metadata
(`stat`) and, where the uid allows it, to change it: `landlock_filter` refuses the system calls that do.
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
"""Linux 6.12. Before it, code could signal every process of its user."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM, _REFER, _TRUNCATE = 1 << 9, 1 << 10, 1 << 12, 1 << 13, 1 << 14
_ALL_OF_FILES = (1 << 16) - 1
"""The rights of ABI 6, IOCTL_DEV included."""
_ALL_OF_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = (
    _READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO
) | (_MAKE_SYM | _REFER)

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The version of Landlock in this kernel; 0 where it has none or was booted without it."""
    version = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 0 and ctypes.get_errno() not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
        _raise("the version of Landlock")
    return max(0, version)


def restrict(
    readable: Iterable[str], writable: Iterable[str], listable: Iterable[str] = (), processes: int = 0
) -> None:
    """Leave this thread, and all that it starts, nothing but these paths and what is below them: `readable` to read
    and execute, `writable` to do everything but to make devices, `listable` to see names. No TCP port and no abstract
    Unix socket of others can be reached; signals reach only what is under the same restriction, or a further one below
    it. `processes`, if not 0: how many more than now its user may have.

    It can be called again, which restricts further. Raises `OSError`; the process is then as it was, but for
    `no_new_privs`.
    """
    if processes:
        limit = _processes_of_user() + processes
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    attributes = struct.pack("=QQQ", _ALL_OF_FILES, _ALL_OF_TCP, _ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        _raise("a Landlock ruleset")
    try:
        for paths, access in ((readable, _READ), (writable, _WRITE), (listable, _READ_DIR)):
            for path in paths:
                _allow(ruleset, path, access)
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
            _raise("no_new_privs")
        if _libc.syscall(_RESTRICT_SELF, ruleset, 0) < 0:
            _raise("the restriction by Landlock")
    finally:
        os.close(ruleset)


def enclose() -> Callable[[], None]:
    """Put this process behind a restriction that leaves it all but signals to others: what kills, in one system call
    that no process can outrun, all that it has started. Raises `OSError`.

    What it starts must be restricted once more: it cannot signal this process then.
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
    """Processes and threads that the kernel counts for the real user of this one."""
    user, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it has ended
                continue
    return count


def _allow(ruleset: int, path: str, access: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _OF_A_FILE
        if _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, fd), 0) < 0:
            _raise(f"the Landlock rule of {path}")
    finally:
        os.close(fd)


def _raise(what: str) -> None:
    error = ctypes.get_errno()
    raise OSError(error, f"{what}: {os.strerror(error)}")
