"""The seccomp filter, run by an interpreter of BPF: what it allows on each architecture, and what it refuses."""

import errno
import re
import struct
from pathlib import Path

import pytest

from agentloop.errors import UserError
from agentloop.sandboxes.levels import bpf, syscalls
from agentloop.sandboxes.levels.seccomp import build_filter

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
ALLOWED = "allowed"


def answer(program: bytes, machine: str, number: int, *arguments: int, architecture: int | None = None) -> str:
    """Return what a filter answers to a system call: allowed, killed, or the name of an error number."""
    audit = MACHINES[machine] if architecture is None else architecture
    data = struct.pack("=IIQ6Q", number, audit, 0, *(each & (1 << 64) - 1 for each in (*arguments, *[0] * 6)[:6]))
    value = position = 0
    while True:
        code, if_true, if_false, constant = struct.unpack_from("=HBBI", program, 8 * position)
        position += 1
        match code:
            case bpf.LOAD:
                value = struct.unpack_from("=I", data, constant)[0]
            case bpf.AND:
                value &= constant
            case bpf.RETURN:
                if constant == bpf.ALLOW:
                    return ALLOWED
                if constant == bpf.KILL:
                    return "killed"
                return errno.errorcode.get(constant & 0xFFFF, "no effect")
            case _:
                jumps = {
                    bpf.JUMP_EQUAL: value == constant,
                    bpf.JUMP_ABOVE: value >= constant,
                    bpf.JUMP_ANY_BIT: bool(value & constant),
                }
                position += if_true if jumps[code] else if_false


@pytest.fixture(params=MACHINES)
def machine(request) -> str:
    return request.param


KINDS = {"namespaces": {}, "none": {"has_namespaces": False}, "box": {"is_box": True}}


@pytest.fixture(params=KINDS)
def program(request, machine) -> bytes:
    return build_filter(machine, **KINDS[request.param])


def test_other_architectures_are_killed_for_any_call(machine, program):
    for other in {*MACHINES.values(), 0x40000003, 0} - {MACHINES[machine]}:
        for number in (*range(500), 1 << 30, (1 << 32) - 1):
            assert answer(program, machine, number, architecture=other) == "killed"


def test_calls_of_kernels_to_come_do_not_exist(machine, program):
    late = {number for family in syscalls.families() for number in syscalls.numbers(family, machine).values()}
    for number in (*range(451, 1200), 0x3FFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF):
        assert answer(program, machine, number) == ("ENOSYS" if number not in late else ALLOWED) or number == 452
    for change in (463, 464, 465, 466, 468, 469):  # setxattrat, ..., file_getattr, file_setattr
        assert answer(program, machine, change) == "ENOSYS"


def test_x32_numbers_are_refused():
    for has_namespaces in (True, False):
        program = build_filter("x86_64", has_namespaces=has_namespaces)
        for number in range(600):
            assert answer(program, "x86_64", 0x40000000 | number) == "ENOSYS"


@pytest.mark.parametrize(
    ("kind", "without"),
    [("namespaces", {syscalls.MACHINE}), ("none", {syscalls.MACHINE, syscalls.METADATA}), ("box", set())],
)
def test_only_listed_calls_are_allowed(machine, kind, without):
    program = build_filter(machine, **KINDS[kind])
    families = [family for family in syscalls.families() if family not in without]
    listed = {number for family in families for number in syscalls.numbers(family, machine).values() if number < 451}
    allowed = {number for number in range(451) if answer(program, machine, number) == ALLOWED}
    assert allowed - set(syscalls.numbers(syscalls.CONDITIONAL, machine).values()) == listed


def test_metadata_changes_are_refused_without_namespaces(machine):
    program = build_filter(machine, has_namespaces=False)
    for number in syscalls.numbers(syscalls.METADATA, machine).values():
        assert answer(program, machine, number, 3, 4096, 4096) in ("EPERM", "ENOSYS")
        assert answer(build_filter(machine), machine, number) == ALLOWED


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", (17,), ALLOWED),
        ("clone", (0x3D0F00,), ALLOWED),  # a thread
        ("clone", (0x10000000 | 17,), "EPERM"),
        ("clone3", (), "ENOSYS"),
        ("prlimit64", (0, 7, 5), ALLOWED),
        ("prlimit64", (1, 7, 5), "EPERM"),
        ("prlimit64", (1 << 32, 7, 5), ALLOWED),  # the kernel reads 32 bits
        ("setpriority", (0, 0, 19), ALLOWED),
        ("setpriority", (0, 1, 19), "EPERM"),
        ("setpriority", (1, 0, 19), "EPERM"),  # the group of the first process
        ("setpriority", (2, 0, 19), "EPERM"),
        ("ioprio_set", (1, 0, 0), ALLOWED),
        ("ioprio_set", (1, 1, 0), "EPERM"),
        ("ioprio_set", (2, 0, 0), "EPERM"),
        ("sched_setaffinity", (1, 8, 8), "EPERM"),
        ("sched_setattr", (1,), "EPERM"),
        ("sched_setparam", (1,), "EPERM"),
        ("sched_setscheduler", (1, 1), "EPERM"),  # SCHED_FIFO
        ("sched_setscheduler", (1, 0), "no effect"),  # SCHED_OTHER, as Mono does with the number of its thread
        ("sched_setscheduler", (0,), ALLOWED),
        ("fcntl", (3, 1030, 0), ALLOWED),
        ("fcntl", (3, 6, 0), ALLOWED),
        ("fcntl", (3, 1024, 0), "EINVAL"),  # F_SETLEASE
        ("fcntl", (3, 1026, 0), "EINVAL"),  # F_NOTIFY
        ("fcntl", (3, 1036, 0), "EINVAL"),  # F_SET_RW_HINT
        ("ioctl", (3, 0x5401), ALLOWED),
        ("ioctl", (3, 0x40086602), "ENOTTY"),  # FS_IOC_SETFLAGS
        ("ioctl", (3, 0x401C5820), "ENOTTY"),  # FS_IOC_FSSETXATTR
        ("ioctl", (3, 0x5412), "ENOTTY"),  # TIOCSTI
        ("prctl", (15,), ALLOWED),
        ("prctl", (35,), "EINVAL"),  # PR_SET_MM
        ("prctl", (1000,), "EINVAL"),
        ("socketpair", (1, 1), ALLOWED),
        ("setsockopt", (3, 1, 2), ALLOWED),
        ("setsockopt", (3, 6, 7), ALLOWED),  # another level
        ("setsockopt", (3, 1, 7), "no effect"),  # SO_SNDBUF
        ("setsockopt", (3, 1, 26), "EPERM"),  # SO_ATTACH_FILTER
        ("sync", (), "no effect"),
        ("mount", (), "EPERM"),
    ],
)
def test_arguments_decide(machine, program, name, arguments, expected):
    assert answer(program, machine, syscalls.numbers(syscalls.CONDITIONAL, machine)[name], *arguments) == expected


@pytest.mark.parametrize(
    ("family", "kind", "expected", "without_namespaces"),
    [
        (1, 1, ALLOWED, "EPERM"),
        (2, 0x80000 | 2, ALLOWED, "EPERM"),
        (10, 1, ALLOWED, "EPERM"),
        (16, 3, "EAFNOSUPPORT", "EPERM"),
        (17, 3, "EAFNOSUPPORT", "EPERM"),
        (38, 5, "EAFNOSUPPORT", "EPERM"),
        (40, 1, "EAFNOSUPPORT", "EPERM"),
    ],
)
def test_families_of_sockets(machine, family, kind, expected, without_namespaces):
    number = syscalls.numbers(syscalls.CONDITIONAL, machine)["socket"]
    assert answer(build_filter(machine), machine, number, family, kind) == expected
    assert answer(build_filter(machine, has_namespaces=False), machine, number, family, kind) == without_namespaces


@pytest.mark.parametrize(("family", "kind"), [(17, 1), (2, 1), (1, 2), (1, 5), (1, 0x80000 | 2)])
def test_only_pairs_of_streams_without_namespaces(machine, family, kind):
    number = syscalls.numbers(syscalls.CONDITIONAL, machine)["socketpair"]
    program = build_filter(machine, has_namespaces=False)
    assert answer(program, machine, number, family, kind) == "EPERM"
    assert answer(program, machine, number, 1, 0x80000 | 0x800 | 1) == ALLOWED


def test_touching_an_open_file_has_no_effect_without_namespaces(machine):
    number = syscalls.numbers(syscalls.METADATA, machine)["utimensat"]
    program = build_filter(machine, has_namespaces=False)
    assert answer(program, machine, number, 3, 0, 0) == "no effect"
    assert answer(program, machine, number, 3, 0, 4096) == "EPERM"
    assert answer(program, machine, number, 3, 4096, 0) == "EPERM"


def test_key_allows_a_call(machine):
    program = build_filter(machine, keyed=("mount",), key=77)
    calls = syscalls.numbers(syscalls.CONDITIONAL, machine)
    assert answer(program, machine, calls["mount"], 0, 0, 0, 0, 0, 77) == ALLOWED
    assert answer(program, machine, calls["mount"], 0, 0, 0, 0, 0, 76) == "EPERM"
    assert answer(program, machine, calls["umount2"], 0, 0, 0, 0, 0, 77) == "EPERM"


def test_numbers_are_those_of_the_kernel(machine):
    (header,) = [path for path in map(Path, HEADERS[machine]) if path.exists()][:1]
    pairs = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", header.read_text())
    known = {name: int(number) for name, number in pairs}
    known.setdefault("newfstatat", known.get("fstatat", 0))
    compared = 0
    for family in (*syscalls.families(), syscalls.CONDITIONAL):
        for name, number in syscalls.numbers(family, machine).items():
            if name in known:
                assert number == known[name], name
                compared += 1
            else:
                assert number > 446, name  # newer than the header
    assert compared > 200


def test_unknown_architecture_is_refused():
    with pytest.raises(UserError, match="riscv64"):
        build_filter("riscv64")
