"""The system calls that sandboxed code may not make, as a seccomp filter in classic BPF.

Namespaces hide the host; this shrinks the kernel that is left to attack. It is a list of what is refused: new
namespaces and mounts by any route, other processes' memory, kernel interfaces with a history of escapes, and sockets
of families that a network namespace does not confine (AF_VSOCK reaches the hypervisor).
https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from collections.abc import Container, Iterator
from typing import NamedTuple

from agentloop.errors import UserError

# (x86_64, aarch64), from the kernel's syscall_64.tbl and asm-generic/unistd.h; None where an architecture has none.
_REFUSED: dict[str, tuple[int, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "semget": (64, 190),  # objects that outlive their process
    "shmget": (29, 194),  # and memory that no limit counts
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

_UNKNOWN: dict[str, tuple[int, int]] = {
    # "Not implemented" makes libraries take the older call: clone's flags can be read here, those of clone3 cannot.
    "clone3": (435, 435),
    "memfd_create": (319, 279),  # memory that no limit of the sandbox counts
    "memfd_secret": (447, 447),
}

_CLONE = (56, 220)
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)

# CLONE_NEW{TIME,NS,CGROUP,UTS,IPC,USER,PID,NET}. The low byte of clone's flags is a signal, so that NEWTIME (0x80)
# can be asked for through clone3 and unshare only.
_NAMESPACE_FLAGS = 0x02000000 | 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)

# Instructions of classic BPF, and the answers of a filter.
_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

# Offsets into struct seccomp_data; the low halves of the first and last argument (both architectures are
# little-endian).
_NUMBER, _ARCHITECTURE, _ARGUMENT, _LAST_ARGUMENT = 0, 4, 16, 56


class _Architecture(NamedTuple):
    column: int
    audit: int
    """AUDIT_ARCH_* of linux/audit.h."""


_ARCHITECTURES = {"x86_64": _Architecture(0, 0xC000003E), "aarch64": _Architecture(1, 0xC00000B7)}


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int, error: int) -> Iterator[bytes]:
    yield _instruction(_JUMP_EQUAL, number, 0, 1)
    yield _instruction(_RETURN, _ERRNO | error)


def _refuse_without(number: int, key: int, error: int) -> Iterator[bytes]:
    yield _instruction(_JUMP_EQUAL, number, 0, 4)
    yield _instruction(_LOAD, _LAST_ARGUMENT)
    yield _instruction(_JUMP_EQUAL, key, 0, 1)
    yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_RETURN, _ERRNO | error)


def _clone(number: int) -> Iterator[bytes]:
    yield _instruction(_JUMP_EQUAL, number, 0, 4)
    yield _instruction(_LOAD, _ARGUMENT)
    yield _instruction(_JUMP_ANY_BIT, _NAMESPACE_FLAGS, 0, 1)
    yield _instruction(_RETURN, _ERRNO | errno.EPERM)
    yield _instruction(_RETURN, _ALLOW)


def _socket(number: int) -> Iterator[bytes]:
    yield _instruction(_JUMP_EQUAL, number, 0, len(_FAMILIES) + 3)
    yield _instruction(_LOAD, _ARGUMENT)
    for index, family in enumerate(_FAMILIES):
        yield _instruction(_JUMP_EQUAL, family, len(_FAMILIES) - index, 0)
    yield _instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT)
    yield _instruction(_RETURN, _ALLOW)


def build_filter(machine: str | None = None, *, keyed: Container[str] = (), key: int = 0) -> bytes:
    """The filter for an architecture (`platform.machine()` by default), as `bwrap --seccomp` reads it.

    `keyed` are calls that it lets pass where their last argument, which they do not use, is `key`: one filter can hold
    for a process that needs them and for those that it starts. Raises `UserError` for an architecture whose system call
    numbers are not known here.
    """
    architecture, program = _start(machine or platform.machine())
    for calls, error in ((_REFUSED, errno.EPERM), (_UNKNOWN, errno.ENOSYS)):
        for name, numbers in calls.items():
            if (number := numbers[architecture.column]) is not None:
                program += _refuse_without(number, key, error) if name in keyed else _refuse(number, error)
    program += _clone(_CLONE[architecture.column])
    program += _socket(_SOCKET[architecture.column])
    program += _socket(_SOCKETPAIR[architecture.column])
    program.append(_instruction(_RETURN, _ALLOW))
    return b"".join(program)


def _start(machine: str) -> tuple[_Architecture, list[bytes]]:
    """The beginning of every filter: the number of the system call, where it is one of the architecture."""
    if machine not in _ARCHITECTURES:
        raise UserError(f"The sandbox has no system call filter for {machine}; it has for {', '.join(_ARCHITECTURES)}.")
    architecture = _ARCHITECTURES[machine]
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, architecture.audit, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":  # The x32 ABI has the same calls under other numbers.
        program += [_instruction(_JUMP_ABOVE, 0x40000000, 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    return architecture, program
