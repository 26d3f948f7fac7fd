"""The seccomp filter of sandboxed code: a list of the system calls that it may make.

Namespaces hide the host, and the filter reduces the attack surface of the kernel. `syscalls` lists the calls that are
allowed with any arguments, and this module those that depend on their arguments. All other calls are refused, those of
future kernels included. In particular these are refused:

 - new namespaces and mounts by any route, memory of other processes, and interfaces with a history of escapes (bpf,
   io_uring, userfaultfd, keys, perf);
 - sockets of families that a network namespace does not confine (AF_VSOCK reaches the hypervisor);
 - limits, priority, scheduling and affinity of other processes, such as the first one of the sandbox;
 - quotas that all executions of a machine share: asynchronous I/O contexts, watches, System V objects, big buffers;
 - watches and leases on files, which could observe neighbours;
 - requests of `ioctl`, `fcntl` and `prctl` that ordinary programs do not make.
"""

from __future__ import annotations

import errno
import os
import platform
import socket
from collections.abc import Iterable, Sequence

from agentloop.errors import UserError
from agentloop.sandboxes.levels import bpf, syscalls

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The AUDIT_ARCH_* values of linux/audit.h."""
_X32 = 0x40000000
"""Bit that marks calls of the x32 ABI, which are the same calls with other numbers."""
_LAST_OF_LINUX_6_0 = 450
"""Number of the last call of Linux 6.0. Later calls give "not implemented", so that libraries use older ones."""

_UNKNOWN = (
    # "Not implemented" makes libraries use clone, whose flags a filter can read, unlike those of clone3.
    "clone3",
    *("memfd_create", "memfd_secret"),  # no limit of the sandbox covers this memory
    *("seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),  # not needed inside
    *("get_mempolicy", "set_mempolicy", "mbind"),  # libnuma then treats the machine as one node
)
_WITHOUT_EFFECT = ("sync", "syncfs")
"""Calls that succeed without effect, because they would flush the files of the host."""

# CLONE_NEW{TIME,NS,CGROUP,UTS,IPC,USER,PID,NET}. The low byte of clone's flags is a signal, so NEWTIME (0x80)
# needs clone3 or unshare.
_NAMESPACE_FLAGS = 0x02000000 | 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_STREAM_PAIR = (
    bpf.Condition(0, (socket.AF_UNIX,)),
    bpf.Condition(1, (socket.SOCK_STREAM,), 0xF),  # without SOCK_CLOEXEC and SOCK_NONBLOCK
)

_NOW = (bpf.Condition(1, (0,)), bpf.Condition(2, (0,)))
"""Arguments of utimensat for an open file (no path) and the present time (no times)."""

_BUFFER_OPTIONS = (7, 8, 32, 33)
"""SO_{SND,RCV}BUF{,FORCE}: hints that are ignored, because all sockets of a machine share the TCP memory."""
_PROGRAM_OPTIONS = (26, 50, 51, 52)
"""SO_ATTACH_{FILTER,BPF,REUSEPORT_CBPF,REUSEPORT_EBPF}, which load programs into the kernel."""

_SELF = (bpf.Condition(0, (0,)),)
"""Condition that the first argument, a process, is 0: the caller itself."""
_WHO = (bpf.Condition(1, (0,)),)
_OF_ITSELF: dict[str, tuple[bpf.Condition, ...]] = {
    "prlimit64": _SELF,
    "sched_setaffinity": _SELF,
    "sched_setattr": _SELF,
    "sched_setparam": _SELF,
    "setpriority": (bpf.Condition(0, (0,)), *_WHO),  # PRIO_PROCESS; a group or a user would include the first process
    "ioprio_set": (bpf.Condition(0, (1,)), *_WHO),  # IOPRIO_WHO_PROCESS
}
"""Calls that could change other processes, and the values that their arguments may have."""

_FCNTL = (
    *(1, 2, 3, 4, 0, 1030),  # F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD, F_DUPFD_CLOEXEC
    *(5, 6, 7, 36, 37, 38),  # F_{GETLK,SETLK,SETLKW}, F_OFD_{GETLK,SETLK,SETLKW}
    *(8, 9, 10, 11, 15, 16),  # F_{SET,GET}{OWN,SIG,OWN_EX}
    *(1031, 1032, 1033, 1034),  # F_{SET,GET}PIPE_SZ, F_{ADD,GET}_SEALS
)
"""Allowed commands of fcntl. F_NOTIFY and leases, which report who opens visible files, and write hints are missing."""
_IOCTL = (
    *(0x5401, 0x5402, 0x5403, 0x5404, 0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D),  # TC{GET,SET}S, TC{GET,SET}S2
    *(0x5413, 0x5414, 0x541B, 0x5421, 0x5450, 0x5451, 0x5452, 0x5460),  # window size, FIONREAD, FIONBIO, FIOCLEX, ...
    *(0x5409, 0x540A, 0x540B, 0x540E, 0x540F, 0x5410, 0x5411, 0x5422, 0x5425, 0x5429),  # terminals and their groups
    *(0x80045430, 0x40045431, 0x5441),  # TIOCGPTN, TIOCSPTLCK, TIOCGPTPEER
    *(0x8905, 0x8910, 0x8912, 0x8913, 0x8915, 0x8917, 0x8919, 0x891B, 0x8921, 0x8927, 0x8933),  # SIOCATMARK, SIOCGIF*
)
"""Allowed requests of ioctl. Those that change flags or attributes of files are missing."""
_PRCTL = (
    *(1, 2, 3, 4, 15, 16, 36, 37, 38, 39),  # death signal, dumpable, name, subreaper, no_new_privs
    *(7, 8, 21, 22, 23, 24, 27, 28, 47, 52, 53),  # capabilities, seccomp, speculation
    *(6, 13, 14, 19, 25, 29, 30, 40, 41, 42, 65, 66),  # timing, timer slack, huge pages, write xor execute
    *(45, 46, 50, 51, 54, 55, 56, 60, 61),  # registers and pointers of aarch64
    *(0x53564D41, 0x59616D61, 0x41555856),  # names of memory, the permitted tracer, auxiliary vector
)


def build_filter(
    machine: str | None = None,
    *,
    has_namespaces: bool = True,
    is_box: bool = False,
    keyed: Sequence[str] = (),
    key: int = 0,
) -> bytes:
    """Return the filter for an architecture (by default of this machine), in the format of `bwrap --seccomp`.

    Without namespaces, the code shares the files and sockets of its user. So it may create no sockets except pairs of
    streams: a network address would be the host's, and Landlock stops neither connections nor datagrams to a Unix
    socket with a path (docker.sock). The code may not change modes, owners, times or attributes of any file, either:
    Landlock does not restrict that, and a filter cannot tell the code's own files from other visible files. `touch`
    still creates files, because setting the time to now succeeds without effect.

    A box is a separate machine, so its programs may also watch files, share memory and trace one another.

    Calls in `keyed` are allowed if their last argument, which they do not use, is `key`. So one filter can apply to a
    process that needs these calls and to the processes that it starts. Raises `UserError` for an architecture whose
    system call numbers are unknown.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT:
        raise UserError(f"The sandbox has no system call filter for {machine}, only for {', '.join(_AUDIT)}.")
    call = syscalls.numbers(syscalls.CONDITIONAL, machine)
    program = [*_start(machine)]
    program += _clone(call["clone"])
    program += bpf.only(call["fcntl"], [bpf.Condition(1, _FCNTL)], errno.EINVAL)
    program += bpf.only(call["ioctl"], [bpf.Condition(1, _IOCTL)], errno.ENOTTY)
    program += bpf.only(call["prctl"], [bpf.Condition(0, _PRCTL)], errno.EINVAL)
    for name, conditions in _OF_ITSELF.items():
        program += bpf.only(call[name], conditions, errno.EPERM)
    program += _sched_setscheduler(call["sched_setscheduler"])
    program += _setsockopt(call["setsockopt"])
    if has_namespaces:
        for name in ("socket", "socketpair"):
            program += bpf.only(call[name], [bpf.Condition(0, _FAMILIES)], errno.EAFNOSUPPORT)
    else:
        program += bpf.only(call["socketpair"], _STREAM_PAIR, errno.EPERM)
        touch = syscalls.numbers(syscalls.METADATA, machine)["utimensat"]
        program += bpf.only(touch, _NOW, errno.EPERM, bpf.ERRNO)
    for name in keyed:
        program += bpf.only(call[name], [bpf.Condition(5, (key,))], errno.EPERM)
    for name in _UNKNOWN:
        program += bpf.refuse(call[name], errno.ENOSYS)
    for name in _WITHOUT_EFFECT:
        program += bpf.refuse(call[name], 0)
    without = set() if has_namespaces else {syscalls.METADATA}
    program += _allow(machine, without if is_box else without | {syscalls.MACHINE})
    return b"".join(program)


def _start(machine: str) -> list[bytes]:
    """Begin a filter: check the architecture and load the number of the system call."""
    program = [
        bpf.instruction(bpf.LOAD, bpf.ARCHITECTURE),
        bpf.instruction(bpf.JUMP_EQUAL, _AUDIT[machine], 1, 0),
        bpf.instruction(bpf.RETURN, bpf.KILL),
        bpf.instruction(bpf.LOAD, bpf.NUMBER),
    ]
    if machine == "x86_64":
        program += [
            bpf.instruction(bpf.JUMP_ABOVE, _X32, 0, 1),
            bpf.instruction(bpf.RETURN, bpf.ERRNO | errno.ENOSYS),
        ]
    return program


def _clone(number: int) -> list[bytes]:
    return [
        bpf.instruction(bpf.JUMP_EQUAL, number, 0, 4),
        bpf.instruction(bpf.LOAD, bpf.ARGUMENTS),
        bpf.instruction(bpf.JUMP_ANY_BIT, _NAMESPACE_FLAGS, 0, 1),
        bpf.instruction(bpf.RETURN, bpf.ERRNO | errno.EPERM),
        bpf.instruction(bpf.RETURN, bpf.ALLOW),
    ]


def _sched_setscheduler(number: int) -> list[bytes]:
    """Let the caller set its own policy. Setting the ordinary one of a numbered thread succeeds without effect.

    C libraries name the calling thread by its number. Mono does that in each program, and writes to stdout if it fails.
    """
    body = [
        bpf.instruction(bpf.LOAD, bpf.ARGUMENTS),
        bpf.instruction(bpf.JUMP_EQUAL, 0, 4),
        bpf.instruction(bpf.LOAD, bpf.ARGUMENTS + 8),
        *bpf.refuse(os.SCHED_OTHER, 0),
        bpf.instruction(bpf.RETURN, bpf.ERRNO | errno.EPERM),
        bpf.instruction(bpf.RETURN, bpf.ALLOW),
    ]
    return [bpf.instruction(bpf.JUMP_EQUAL, number, 0, len(body)), *body]


def _setsockopt(number: int) -> list[bytes]:
    options = [*((option, errno.EPERM) for option in _PROGRAM_OPTIONS), *((option, 0) for option in _BUFFER_OPTIONS)]
    body = [
        bpf.instruction(bpf.LOAD, bpf.ARGUMENTS + 8),
        bpf.instruction(bpf.JUMP_EQUAL, socket.SOL_SOCKET, 0, 1 + 2 * len(options)),
        bpf.instruction(bpf.LOAD, bpf.ARGUMENTS + 16),
    ]
    for option, error in options:
        body += bpf.refuse(option, error)
    body.append(bpf.instruction(bpf.RETURN, bpf.ALLOW))
    return [bpf.instruction(bpf.JUMP_EQUAL, number, 0, len(body)), *body]


def _allow(machine: str, without: set[str]) -> list[bytes]:
    """Allow the calls of the table, except for some families, and refuse all others."""
    families = [family for family in syscalls.families() if family not in without]
    allowed = sorted(number for family in families for number in syscalls.numbers(family, machine).values())
    late = [number for number in allowed if number > _LAST_OF_LINUX_6_0]
    answers = [*(bpf.instruction(bpf.JUMP_EQUAL, number, len(late) - index) for index, number in enumerate(late))]
    answers += [
        bpf.instruction(bpf.RETURN, bpf.ERRNO | errno.ENOSYS),
        bpf.instruction(bpf.RETURN, bpf.ALLOW),
    ]
    jump = bpf.instruction(bpf.JUMP_ABOVE, _LAST_OF_LINUX_6_0 + 1, 0, len(answers))
    return [jump, *answers, *bpf.allow_ranges(_ranges(allowed[: -len(late)]), errno.EPERM)]


def _ranges(values: Iterable[int]) -> Sequence[tuple[int, int]]:
    """Return sorted numbers as ranges of (first, last)."""
    ranges: list[tuple[int, int]] = []
    for value in values:
        if ranges and ranges[-1][1] == value - 1:
            ranges[-1] = (ranges[-1][0], value)
        else:
            ranges.append((value, value))
    return ranges
