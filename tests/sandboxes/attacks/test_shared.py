"""Code that takes or uses what all executions of a machine share: quotas, watches, locks, counters, shown files."""

import asyncio
import sys

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

CALL = """
import ctypes, errno, os, platform, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *arguments):
    number = x86 if platform.machine() == "x86_64" else arm
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""


async def test_shown_files_cannot_be_watched(box):
    code = f"""{CALL}
import fcntl
print("inotify", call(253, 26, 0) if platform.machine() == "x86_64" else "EPERM", call(294, 26, 0))
print("inotify_add_watch", call(254, 27, 0, b"/usr", 0xFFF))
print("fanotify", call(300, 262, 0, 0))
for command in (fcntl.F_NOTIFY, fcntl.F_SETLEASE):
    try:
        fcntl.fcntl(os.open("/usr", os.O_RDONLY), command, 0x80000001 if command == fcntl.F_NOTIFY else fcntl.F_RDLCK)
        print("watched")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    result = await box.run(code)
    assert (result.stdout.split(), result.stderr) == (
        ["inotify", "EPERM", "EPERM", "inotify_add_watch", "EPERM", "fanotify", "EPERM", "EINVAL", "EINVAL"],
        "",
    )


async def test_quotas_of_the_machine_cannot_be_taken(box):
    code = f"""{CALL}
import mmap, resource, signal
print("aio", call(206, 0, 65536, ctypes.byref(ctypes.c_long())), call(334 - 1, 292, 0, 0, 0, 0, 0, 0))
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
queued, signal_40 = 0, struct.pack("=iiiiq", 40, 0, -1, 0, 0) + bytes(104)
while queued < 10_000 and call(129, 138, os.getpid(), 40, signal_40) == "done":
    queued += 1
print("signals", 0 < queued <= 256)
for name in ("RLIMIT_SIGPENDING", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO"):
    limit = getattr(resource, name)
    try:
        resource.setrlimit(limit, (1 << 30, 1 << 30))
        print("raised", name)
    except (ValueError, OSError):
        print(name, resource.getrlimit(limit)[1])
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("real time")
except PermissionError:
    pass
page = ctypes.byref(ctypes.c_char.from_buffer(mmap.mmap(-1, 1 << 20)))
print("locked", call(149, 228, page, 1 << 20), call(151, 230, 3))
"""
    result = await box.run(code)
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines == [
        "aio EPERM EPERM",
        "signals True",
        "RLIMIT_SIGPENDING 256",
        "RLIMIT_MEMLOCK 65536",
        "RLIMIT_MSGQUEUE 0",
        "RLIMIT_NICE 0",
        "RLIMIT_RTPRIO 0",
        lines[-1],
    ]
    assert "done" not in lines[-1]


async def test_signals_do_not_use_the_quota_of_the_owner(box):
    """The signals of the code are queued while the owner queues its own."""
    code = f"""{CALL}
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
for _ in range(100_000):
    if call(129, 138, os.getpid(), 40, struct.pack("=iiiiq", 40, 0, -1, 0, 0) + bytes(104)) != "done":
        break
time.sleep(0.5)
"""
    before = _queued_signals()
    running = [asyncio.create_task(box.run(code)) for _ in range(3)]
    most = 0
    while not all(task.done() for task in running):
        most = max(most, _queued_signals() - before)
        await asyncio.sleep(0.02)
    assert most < 10_000


def _queued_signals() -> int:
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith("SigQ")]
    return int(line.split()[1].partition("/")[0])


@pytest.mark.claim("memory of TCP")
async def test_buffers_of_connections_are_small(box):
    code = """
import socket
try:
    server = socket.create_server(("127.0.0.1", 0))
    writer = socket.create_connection(server.getsockname())
    held, reader = 0, server.accept()[0]
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
    writer.setblocking(False)
    while True:
        held += writer.send(bytes(65536))
except BlockingIOError:
    print(held)
except PermissionError:
    print(0)
"""
    result = await box.run(code)
    assert int(result.stdout) < 400_000, result


LOCK = """
import fcntl, os, sys, time
file = os.open("/usr/bin/env", os.O_RDONLY)
"""


@pytest.mark.claim("locks on shown files")
@pytest.mark.parametrize(
    "lock", ["fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "fcntl.lockf(file, fcntl.LOCK_SH)"]
)
async def test_locks_on_shown_files_tell_neighbours_nothing(box, lock):
    assert await locks_seen(box, lock) == ["free"]


async def locks_seen(box, lock: str) -> list[str]:
    """Return what an execution finds of a lock that another one holds."""
    hold = f"{LOCK}{lock}\nprint('held', flush=True)\ntime.sleep(1.5)"
    look = f"""{LOCK}
time.sleep(0.5)
import struct
query = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kind = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, query))[0]
    print("free" if kind == fcntl.F_UNLCK else "locked")
except BlockingIOError:
    print("locked")
"""
    held, seen = await asyncio.gather(box.run(hold), box.run(look))
    assert held.stdout == "held\n", held
    return seen.stdout.split()


COUNTERS = """
import os, socket
def read(path):
    try:
        return open(path).read()
    except OSError:
        return ""
times = [(os.stat(path).st_mtime_ns, os.stat(path).st_size) for path in ("/mnt", "/dev/shm")]
open("new", "w").close(); open("/mnt/new", "w").close(); open("/dev/shm/new", "w").close()
numbers = [os.stat(path).st_ino for path in (".", "/tmp", "new", "/mnt/new", "/dev/shm/new")]
fresh = LEVEL == "docker"  # a container of its own, whose first numbers its runtime has used
print(fresh or os.getpid(), times if LEVEL == "slots" else "", numbers)
print({name: read(f"/proc/net/{name}") for name in ("snmp", "netstat", "snmp6", "dev", "sockstat", "protocols")}
      if LEVEL == "slots" else "")
print(fresh or read("/proc/sys/kernel/ns_last_pid"))
"""


@pytest.mark.claim("counters of earlier executions")
async def test_counters_tell_nothing_of_earlier_executions(box):
    leave = """
import os, socket
for _ in range(37):
    if os.fork() == 0:
        os._exit(0)
    os.wait()
for index in range(100):
    for folder in (".", "/tmp", "/mnt", "/dev/shm"):
        open(f"{folder}/{index}", "w").close()
        os.unlink(f"{folder}/{index}")
server = socket.create_server(("127.0.0.1", 0))
for _ in range(50):
    socket.create_connection(server.getsockname()).send(b"x")
"""
    look = f"LEVEL = {box.sandbox.level!r}\n{COUNTERS}"
    expected = (await box.run(look)).stdout
    assert expected.count("\n") >= 3
    for _ in range(6):  # more often than there are slots
        assert (await box.run(leave)).stderr == ""
        assert (await box.run(look)).stdout == expected


async def test_shown_files_keep_modes_and_attributes(box):
    code = f"""{CALL}
paths = ["/usr/bin/env", "/usr", {sys.base_prefix!r}, "/dev/null"]
for path in filter(os.path.exists, paths):
    file = os.open(path, os.O_RDONLY)
    name = path.encode()
    tries = [
        lambda: os.fchmod(file, 0o6777), lambda: os.chmod(path, 0o6777), lambda: os.chown(path, 1000, 1000),
        lambda: os.fchown(file, os.getuid(), os.getgid()),
        lambda: os.utime(path, (1, 1)), lambda: os.utime(file, (1, 1)),
        lambda: os.setxattr(path, "user.x", b"x"), lambda: os.setxattr(file, "user.x", b"x"),
        lambda: os.removexattr(file, "user.x"),
    ]
    for index, attempt in enumerate(tries):
        try:
            attempt()
            print("changed", path, index)
        except OSError:
            pass
    for answer in (call(469, 469, file, b"", bytes(32), 32, 0x1000),
                   call(463, 463, file, b"", 0x1000, b"user.x", 0, 16),
                   call(452, 452, file, b"", 0o6777, 0x1000), call(16, 29, file, 0x40086602, struct.pack("=l", 0x80)),
                   call(16, 29, file, 0x401C5820, bytes(28))):
        if answer == "done":
            print("changed", path)
"""
    result = await box.run(code)
    assert (result.stdout, result.stderr) == ("", "")


CHANGES = """
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
for victim in {os.getppid(), 1}:
    for attempt in (
        lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE, (0, 0)),
        lambda: resource.prlimit(victim, resource.RLIMIT_AS, (1, 1)),
        lambda: resource.prlimit(victim, resource.RLIMIT_CPU, (1, 1)),
        lambda: os.sched_setaffinity(victim, [max(os.sched_getaffinity(0))]),
        lambda: os.sched_setscheduler(victim, os.SCHED_IDLE, os.sched_param(0)),
        lambda: os.sched_setparam(victim, os.sched_param(0)),
        lambda: os.setpriority(os.PRIO_PROCESS, victim, 19),
        lambda: os.setpriority(os.PRIO_PGRP, 0, 19),
        lambda: os.setpriority(os.PRIO_USER, 0, 19),
    ):
        try:
            attempt()
            print("changed", victim)
        except OSError:
            pass
    for which, who in ((1, victim), (2, 0), (3, 0)):
        if libc.syscall(251 if os.uname().machine == "x86_64" else 30, which, who, 3 << 13) == 0:
            print("ioprio", victim)
    for number in (1, 2, 3, 9, 10, 12, 13, 14, 15, 17, 19, 20, 24, 25, 40):
        if victim == 1:
            try:
                os.kill(1, number)
            except OSError:
                pass
"""


async def test_first_process_of_the_sandbox_cannot_be_changed(box):
    """Its next step, which reads the files, works as before."""
    code = CHANGES + "open('out', 'w').write('wrong')"
    result = await box.run(code, fetch_files=["out"])
    assert (result.stdout, result.stderr, result.files) == ("", "", {"out": b"wrong"})
    assert (await box.run("print('next')", fetch_files=["main.py"])).stdout == "next\n"
