"""The seccomp filter of the level `landlock`: that of `seccomp`, and the system calls that namespaces would confine.

Without namespaces, the code lives among the processes, sockets and shared memory of its user. Refused are:

 - Sockets, except pairs of streams. A network address would be the host's own. Landlock stops neither a connection to
   a Unix socket with a path (docker.sock) nor a datagram to one.
 - Metadata changes by path: Landlock leaves `chmod` and its like to the user, who may own files of the host. Open files
   can be changed (`fchmod`), and only permitted files can be opened.
 - Limits, priority and affinity of other processes; memory and queues shared by key; watching directories.
"""

from __future__ import annotations

import errno
import platform
import socket
from collections.abc import Iterator

from agentloop.sandboxes.levels import bpf
from agentloop.sandboxes.levels.seccomp import build_filter

# (x86_64, aarch64) numbers, from the kernel's syscall_64.tbl and asm-generic/unistd.h; None: the call does not exist.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "chown": (92, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchownat": (260, 54),
    "futimesat": (261, None),
    "inotify_add_watch": (254, 27),
    "ioprio_set": (251, 30),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "migrate_pages": (256, 238),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "setpriority": (141, 140),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmat": (30, 196),
    "socket": (41, 198),
    "utime": (132, None),
    "utimes": (235, None),
}

_REFUSED_UNLESS_ZERO: dict[str, tuple[int, int, int]] = {
    # The last number is the argument that must be zero: the process (itself) or the path (an open file).
    "prlimit64": (302, 261, 0),
    "sched_setaffinity": (203, 122, 0),
    "sched_setattr": (314, 274, 0),
    "sched_setparam": (142, 118, 0),
    "sched_setscheduler": (144, 119, 0),
    "utimensat": (280, 88, 1),
}

_SOCKETPAIR = (53, 199)
_TYPE_MASK = 0xF  # without SOCK_CLOEXEC and SOCK_NONBLOCK


def _refuse_unless_zero(number: int, argument: int) -> Iterator[bytes]:
    yield bpf.instruction(bpf.JUMP_EQUAL, number, 0, 6)
    for half in (0, 4):
        yield bpf.instruction(bpf.LOAD, bpf.ARGUMENTS + 8 * argument + half)
        yield bpf.instruction(bpf.JUMP_EQUAL, 0, 0, 3 if half == 0 else 1)
    yield bpf.instruction(bpf.RETURN, bpf.ALLOW)
    yield bpf.instruction(bpf.RETURN, bpf.ERRNO | errno.EPERM)


def _only_pairs_of_streams(number: int) -> Iterator[bytes]:
    yield bpf.instruction(bpf.JUMP_EQUAL, number, 0, 7)
    yield bpf.instruction(bpf.LOAD, bpf.ARGUMENTS)
    yield bpf.instruction(bpf.JUMP_EQUAL, socket.AF_UNIX, 0, 4)
    yield bpf.instruction(bpf.LOAD, bpf.ARGUMENTS + 8)
    yield bpf.instruction(bpf.AND, _TYPE_MASK)
    yield bpf.instruction(bpf.JUMP_EQUAL, socket.SOCK_STREAM, 0, 1)
    yield bpf.instruction(bpf.RETURN, bpf.ALLOW)
    yield bpf.instruction(bpf.RETURN, bpf.ERRNO | errno.EPERM)


def build_landlock_filter(machine: str | None = None) -> bytes:
    """Return the filter for an architecture: the calls refused here, then everything of `seccomp.build_filter`.

    Raises `UserError` for an architecture whose system call numbers are unknown.
    """
    machine = machine or platform.machine()
    rest = build_filter(machine)
    column = 0 if machine == "x86_64" else 1
    program = [bpf.instruction(bpf.LOAD, bpf.NUMBER)]
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            program += bpf.refuse(number, errno.EPERM)
    for *pair, argument in _REFUSED_UNLESS_ZERO.values():
        program += _refuse_unless_zero(pair[column], argument)
    program += _only_pairs_of_streams(_SOCKETPAIR[column])
    return b"".join(program) + rest
