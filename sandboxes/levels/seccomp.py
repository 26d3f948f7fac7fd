"""The seccomp filter of sandboxed code: a list of refused system calls.

Namespaces hide the host; the filter shrinks the kernel that is left to attack. It refuses new namespaces and mounts by
any route, access to the memory of other processes, kernel interfaces with a history of escapes, and sockets of families
that a network namespace does not confine (AF_VSOCK reaches the hypervisor).
"""

from __future__ import annotations

import errno
import platform
import socket
from collections.abc import Container, Iterator
from typing import NamedTuple

from agentloop.errors import UserError
from agentloop.sandboxes.levels import bpf

# (x86_64, aarch64) numbers, from the kernel's syscall_64.tbl and asm-generic/unistd.h; None: the call does not exist.
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
    "semget": (64, 190),  # these objects outlive their process
    "shmget": (29, 194),  # and no limit counts this memory
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

_UNKNOWN: dict[str, tuple[int, int]] = {
    # "Not implemented" makes libraries use the older call: a filter can read the flags of clone, but not of clone3.
    "clone3": (435, 435),
    "memfd_create": (319, 279),  # no limit of the sandbox counts this memory
    "memfd_secret": (447, 447),
}

_CLONE = (56, 220)
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)

# CLONE_NEW{TIME,NS,CGROUP,UTS,IPC,USER,PID,NET}. The low byte of clone's flags is a signal, so NEWTIME (0x80)
# needs clone3 or unshare.
_NAMESPACE_FLAGS = 0x02000000 | 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)

_LAST_ARGUMENT = bpf.ARGUMENTS + 8 * 5


class _Architecture(NamedTuple):
    column: int
    audit: int
    """The AUDIT_ARCH_* value of linux/audit.h."""


_ARCHITECTURES = {"x86_64": _Architecture(0, 0xC000003E), "aarch64": _Architecture(1, 0xC00000B7)}


def _refuse_without(number: int, key: int, error: int) -> Iterator[bytes]:
    yield bpf.instruction(bpf.JUMP_EQUAL, number, 0, 4)
    yield bpf.instruction(bpf.LOAD, _LAST_ARGUMENT)
    yield bpf.instruction(bpf.JUMP_EQUAL, key, 0, 1)
    yield bpf.instruction(bpf.RETURN, bpf.ALLOW)
    yield bpf.instruction(bpf.RETURN, bpf.ERRNO | error)


def _clone(number: int) -> Iterator[bytes]:
    yield bpf.instruction(bpf.JUMP_EQUAL, number, 0, 4)
    yield bpf.instruction(bpf.LOAD, bpf.ARGUMENTS)
    yield bpf.instruction(bpf.JUMP_ANY_BIT, _NAMESPACE_FLAGS, 0, 1)
    yield bpf.instruction(bpf.RETURN, bpf.ERRNO | errno.EPERM)
    yield bpf.instruction(bpf.RETURN, bpf.ALLOW)


def _socket(number: int) -> Iterator[bytes]:
    yield bpf.instruction(bpf.JUMP_EQUAL, number, 0, len(_FAMILIES) + 3)
    yield bpf.instruction(bpf.LOAD, bpf.ARGUMENTS)
    for index, family in enumerate(_FAMILIES):
        yield bpf.instruction(bpf.JUMP_EQUAL, family, len(_FAMILIES) - index, 0)
    yield bpf.instruction(bpf.RETURN, bpf.ERRNO | errno.EAFNOSUPPORT)
    yield bpf.instruction(bpf.RETURN, bpf.ALLOW)


def build_filter(machine: str | None = None, *, keyed: Container[str] = (), key: int = 0) -> bytes:
    """Return the filter for an architecture (by default of this machine), in the format of `bwrap --seccomp`.

    Calls in `keyed` are allowed if their last argument, which they do not use, is `key`. So one filter can hold for a
    process that needs these calls and for the processes that it starts. Raises `UserError` for an architecture whose
    system call numbers are unknown.
    """
    architecture, program = _start(machine or platform.machine())
    for calls, error in ((_REFUSED, errno.EPERM), (_UNKNOWN, errno.ENOSYS)):
        for name, numbers in calls.items():
            if (number := numbers[architecture.column]) is not None:
                program += _refuse_without(number, key, error) if name in keyed else bpf.refuse(number, error)
    program += _clone(_CLONE[architecture.column])
    program += _socket(_SOCKET[architecture.column])
    program += _socket(_SOCKETPAIR[architecture.column])
    program.append(bpf.instruction(bpf.RETURN, bpf.ALLOW))
    return b"".join(program)


def _start(machine: str) -> tuple[_Architecture, list[bytes]]:
    """Begin a filter: check the architecture and load the number of the system call."""
    if machine not in _ARCHITECTURES:
        raise UserError(f"The sandbox has no system call filter for {machine}, only for {', '.join(_ARCHITECTURES)}.")
    architecture = _ARCHITECTURES[machine]
    program = [
        bpf.instruction(bpf.LOAD, bpf.ARCHITECTURE),
        bpf.instruction(bpf.JUMP_EQUAL, architecture.audit, 1, 0),
        bpf.instruction(bpf.RETURN, bpf.KILL),
        bpf.instruction(bpf.LOAD, bpf.NUMBER),
    ]
    if machine == "x86_64":  # the x32 ABI has the same calls with other numbers
        program += [
            bpf.instruction(bpf.JUMP_ABOVE, 0x40000000, 0, 1),
            bpf.instruction(bpf.RETURN, bpf.ERRNO | errno.ENOSYS),
        ]
    return architecture, program
