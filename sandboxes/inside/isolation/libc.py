"""System calls that Python 3.11 has no function for. All raise `OSError`."""

from __future__ import annotations

import _signal
import _socket
import ctypes
import fcntl
import os
import struct

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 22, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE, _AT_EMPTY_PATH, _MOVE_FROM_EMPTY_PATH, _ATTR_IDMAP = 0x1, 0x1000, 0x4, 0x100000
_MACHINE = os.uname().machine
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}.get(_MACHINE, 0)
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(_MACHINE, 0)
_SYS_MOUNT = {"x86_64": 165, "aarch64": 40}.get(_MACHINE, 0)
_SYS_UMOUNT = {"x86_64": 166, "aarch64": 39}.get(_MACHINE, 0)
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_LINUX_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _prctl(option: int, *arguments: int | ctypes.c_void_p) -> int:
    values = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    values += [ctypes.c_ulong(0)] * (4 - len(values))
    result: int = _libc.prctl(option, *values)
    return result


def unshare(flags: int) -> None:
    """Enter new namespaces."""
    _checked(_libc.unshare(flags), "new namespaces")


def enter(namespace: int, kind: int) -> None:
    """Move this thread into a namespace, given as a descriptor, of the kind CLONE_NEW... Raises `OSError`."""
    _checked(_libc.setns(namespace, kind), "setns")


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None, *, key: int = 0
) -> None:
    """Mount a file system. `key` is for the seccomp filter, and is passed as an unused argument of the system call."""
    texts = [os.fsencode(text) if text is not None else None for text in (source, target, kind, data)]
    result = _libc.syscall(ctypes.c_long(_SYS_MOUNT), *texts[:3], ctypes.c_ulong(flags), texts[3], ctypes.c_ulong(key))
    _checked(result, f"mount {kind or source} at {target}")


def umount(target: str, flags: int = 0, *, key: int = 0) -> None:
    """Unmount a file system; `key` as in `mount`."""
    unused = [ctypes.c_ulong(0)] * 3
    result = _libc.syscall(
        ctypes.c_long(_SYS_UMOUNT), os.fsencode(target), ctypes.c_ulong(flags), *unused, ctypes.c_ulong(key)
    )
    _checked(result, f"unmount {target}")


def read_only(target: str) -> None:
    """Make a mount and everything below it read-only, without devices and set-user-id programs. Needs Linux 5.12."""
    attributes = struct.pack("=QQQQ", MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR), _AT_FDCWD, os.fsencode(target), _AT_RECURSIVE, attributes, len(attributes)
    )
    _checked(result, f"make {target} read-only")


def mount_with_ids(path: str, user_namespace: int) -> int:
    """Return a descriptor of a detached mount of `path`, whose files belong to users of a user namespace.

    User n of the file system becomes user n of the namespace. Needs Linux 5.12, and CAP_SYS_ADMIN in the user namespace
    that mounted the file system.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    fd: int = _libc.syscall(ctypes.c_long(_OPEN_TREE), _AT_FDCWD, os.fsencode(path), ctypes.c_uint(flags))
    _checked(fd, f"open {path}")
    attributes = struct.pack("=QQQQ", _ATTR_IDMAP | MS_RDONLY | MS_NODEV, 0, 0, user_namespace)
    result = _libc.syscall(ctypes.c_long(_MOUNT_SETATTR), fd, b"", _AT_EMPTY_PATH, attributes, len(attributes))
    try:
        _checked(result, f"map the users of {path}")
    except OSError:
        os.close(fd)
        raise
    return fd


def attach(mount_fd: int, target: str) -> None:
    """Attach the mount of a descriptor to a directory."""
    result = _libc.syscall(
        ctypes.c_long(_MOVE_MOUNT), mount_fd, b"", _AT_FDCWD, os.fsencode(target), _MOVE_FROM_EMPTY_PATH
    )
    _checked(result, f"attach a mount to {target}")


def pivot_root(root: str) -> None:
    """Make the mount point `root` the root directory, and detach the old root."""
    os.chdir(root)
    _checked(_libc.syscall(ctypes.c_long(_SYS_PIVOT_ROOT), b".", b"."), "pivot_root")
    umount(".", MNT_DETACH)
    os.chdir("/")


def set_hostname(name: str) -> None:
    """Set the host name of this UTS namespace."""
    _checked(_libc.sethostname(name.encode(), len(name)), "hostname")


def loopback_up() -> None:
    """Start the loopback device of this network namespace."""
    control = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    control.close()


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _checked(_prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL), "PR_SET_PDEATHSIG")


def become_subreaper() -> None:
    """Adopt orphans among the descendants of this process."""
    _checked(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "PR_SET_CHILD_SUBREAPER")


def set_dumpable(value: bool) -> None:
    """Set whether processes of the same user may inspect this one; this also sets the owner of its files in /proc."""
    _checked(_prctl(_PR_SET_DUMPABLE, int(value)), "PR_SET_DUMPABLE")


def no_new_privileges() -> None:
    """Prevent set-user-id programs from giving this process rights."""
    _checked(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "PR_SET_NO_NEW_PRIVS")


def drop_bounding_set(keep: frozenset[int] = frozenset()) -> None:
    """Prevent this process from gaining capabilities other than `keep` through a program. It keeps its present ones."""
    capability = 0
    while capability in keep or _prctl(_PR_CAPBSET_DROP, capability) == 0:
        capability += 1


def drop_capabilities() -> None:
    """Give up all capabilities."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _LINUX_CAPABILITY_VERSION_3, 0)
    _checked(_libc.syscall(ctypes.c_long(_SYS_CAPSET), header, bytes(24)), "drop capabilities")


def keep_capabilities(keep: frozenset[int]) -> None:
    """Give up all capabilities except `keep`, which are numbers below 32."""
    low = sum(1 << capability for capability in keep)
    header = struct.pack("=Ii", _LINUX_CAPABILITY_VERSION_3, 0)
    _checked(_libc.syscall(ctypes.c_long(_SYS_CAPSET), header, struct.pack("=IIIIII", low, low, 0, 0, 0, 0)), "capset")


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def set_command_line(text: str) -> None:
    """Change the command line that others see of this process. It must not be longer than the original one."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text.encode(), min(len(text), end - start - 1))


def install_filter(program: bytes) -> None:
    """Add a seccomp filter to the existing ones; needs `no_new_privileges`."""
    structure = _FilterProgram(len(program) // 8, program)
    result = _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.cast(ctypes.byref(structure), ctypes.c_void_p))
    _checked(result, "seccomp filter")


def close_from(first: int) -> None:
    """Close all descriptors from `first` on."""
    _close_range(first, 0xFFFFFFFF)


def close_all_but(*keep: int) -> None:
    """Close all descriptors above 2 except these."""
    first = 3
    for fd in sorted(keep):
        if fd > first:
            _close_range(first, fd - 1)
        first = fd + 1
    close_from(first)


def _close_range(first: int, last: int) -> None:
    _checked(_libc.close_range(ctypes.c_uint(first), ctypes.c_uint(last), 0), "close_range")
