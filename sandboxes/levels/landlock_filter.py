"""The system calls that code under Landlock may not make, on top of those of `seccomp`: without namespaces it lives
among the processes, sockets and shared memory of its user.

 - Sockets: none but pairs of streams. A network address would be the host's own, and Landlock stops neither a connect
   to a Unix socket that has a path (docker.sock) nor a datagram to one.
 - Metadata of files by path: Landlock leaves `chmod` and its like to the uid, which may own the host's files. What is
   open can be changed (`fchmod`), and only what is shown can be opened.
 - Limits, priority and affinity of other processes; memory and queues that are shared by key; watching directories.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from collections.abc import Iterator

from agentloop.sandboxes.levels.seccomp import build_filter

# (x86_64, aarch64), from the kernel's syscall_64.tbl and asm-generic/unistd.h; None where an architecture has none.
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
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "semget": (64, 190),
    "setpriority": (141, 140),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmat": (30, 196),
    "shmget": (29, 194),
    "socket": (41, 198),
    "utime": (132, None),
    "utimes": (235, None),
}

_REFUSED_UNLESS_ZERO: dict[str, tuple[int, int, int]] = {
    # and the argument that has to be zero: the process (itself) or the path (an open file)
    "prlimit64": (302, 261, 0),
    "sched_setaffinity": (203, 122, 0),
    "sched_setattr": (314, 274, 0),
    "sched_setparam": (142, 118, 0),
    "sched_setscheduler": (144, 119, 0),
    "utimensat": (280, 88, 1),
}

_SOCKETPAIR = (53, 199)
_TYPE_MASK = 0xF  # without SOCK_CLOEXEC and SOCK_NONBLOCK

# Instructions of classic BPF, the answers of a filter, and offsets into struct seccomp_data.
_LOAD, _JUMP_EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_NUMBER, _ARGUMENTS = 0, 16


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> Iterator[bytes]:
    yield _instruction(_JUMP_EQUAL, number, 0, 1)
    yield _instruction(_RETURN, _REFUSE)


def _refuse_unless_zero(number: int, argument: int) -> Iterator[bytes]:
    yield _instruction(_JUMP_EQUAL, number, 0, 6)
    for half in (0, 4):
        yield _instruction(_LOAD, _ARGUMENTS + 8 * argument + half)
        yield _instruction(_JUMP_EQUAL, 0, 0, 3 if half == 0 else 1)
    yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_RETURN, _REFUSE)


def _only_pairs_of_streams(number: int) -> Iterator[bytes]:
    yield _instruction(_JUMP_EQUAL, number, 0, 7)
    yield _instruction(_LOAD, _ARGUMENTS)
    yield _instruction(_JUMP_EQUAL, socket.AF_UNIX, 0, 4)
    yield _instruction(_LOAD, _ARGUMENTS + 8)
    yield _instruction(_AND, _TYPE_MASK)
    yield _instruction(_JUMP_EQUAL, socket.SOCK_STREAM, 0, 1)
    yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_RETURN, _REFUSE)


def build_landlock_filter(machine: str | None = None) -> bytes:
    """The filter for an architecture: what is refused here, and then all of `seccomp.build_filter`.

    Raises `UserError` for an architecture whose system call numbers are not known here.
    """
    machine = machine or platform.machine()
    rest = build_filter(machine)
    column = 0 if machine == "x86_64" else 1
    program = [_instruction(_LOAD, _NUMBER)]
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            program += _refuse(number)
    for *pair, argument in _REFUSED_UNLESS_ZERO.values():
        program += _refuse_unless_zero(pair[column], argument)
    program += _only_pairs_of_streams(_SOCKETPAIR[column])
    return b"".join(program) + rest
