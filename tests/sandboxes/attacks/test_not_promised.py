"""Properties that the page does not promise of a level do not hold there, so the page is exact."""

import asyncio
import os
import re

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

TWICE = """
import os
reader, writer = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        x = bytearray(60 << 20)
        os.write(1, b"got it ")
        os.write(writer, b"x")
        os.read(reader, 0)
        import time; time.sleep(2)
        os._exit(0)
for _ in range(3):
    os.read(reader, 1)
print("together")
"""
MANY_FILES = """
import os
for index in range(66_000):
    os.close(os.open(str(index), os.O_CREAT))
print("made")
"""
TRY = """
import os, resource, socket
try:
    print({})
except OSError as error:
    print(type(error).__name__)
"""
LOCK = """
import fcntl, os, sys, time
file = os.open("/usr/bin/env", os.O_RDONLY)
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    time.sleep(3)  # on a busy machine the other one starts late
    print("locked")
except BlockingIOError:
    print("seen")
"""
INODES = "import os; print(max(os.fstat(end).st_ino for _ in range(400) for end in os.pipe()))"
CONNECTION = """
import socket
server = socket.create_server(("127.0.0.1", 0))
writer = socket.create_connection(server.getsockname())
held, reader = 0, server.accept()[0]
writer.setblocking(False)
try:
    while True:
        held += writer.send(bytes(65536))
except BlockingIOError:
    print(held > 1_000_000)
"""
_NOSUID = TRY.format("not os.statvfs('/usr').f_flag & os.ST_NOSUID")

SHOWN: dict[tuple[str, str], tuple[str, str]] = {
    ("slots", "locks on shown files"): (LOCK, "locked seen"),
    ("slots", "counters of the kernel"): (INODES, "rising"),
    ("bubblewrap", "locks on shown files"): (LOCK, "locked seen"),
    ("bubblewrap", "counters of the kernel"): (INODES, "rising"),
    ("bubblewrap", "memory of TCP"): (CONNECTION, "True"),
    ("bubblewrap", "memory in sum"): (TWICE, r"(got it )*together"),
    ("bubblewrap", "number of files"): (MANY_FILES, "made"),
    ("docker", "counters of the kernel"): (INODES, "rising"),
    ("docker", "nosuid"): (_NOSUID, "True"),
    ("docker", "only what it needs"): (TRY.format("os.listdir('/var')"), r"\[.*'lib'.*\]"),
    ("landlock", "locks on shown files"): (LOCK, "locked seen"),
    ("landlock", "counters of earlier executions"): ("import os; print(os.getpid())", "rising"),
    ("landlock", "counters of the kernel"): (INODES, "rising"),
    ("landlock", "modes of own files"): (TRY.format("os.chmod('main.py', 0o700)"), "PermissionError"),
    ("landlock", "nosuid"): (_NOSUID, "True"),
    ("landlock", "memory in sum"): (TWICE, r"(got it )*together"),
    ("landlock", "disk in sum"): (
        "for index in range(3): open(str(index), 'wb').write(bytes(40 << 20))\nprint('made')",
        "made",
    ),
    ("landlock", "number of files"): (MANY_FILES, "made"),
    ("landlock", "own /tmp, /mnt and /dev/shm"): (TRY.format("open('/dev/shm/x', 'w')"), "PermissionError"),
    ("landlock", "loopback"): (TRY.format("socket.create_server(('127.0.0.1', 0))"), "PermissionError"),
    ("landlock", "/proc"): (TRY.format("open('/proc/self/status')"), "PermissionError"),
}
"""(level, claim) -> a program, and its output or how the outputs of several runs are related."""


async def test_claims_that_are_not_made_do_not_hold(box):
    level = box.sandbox.level
    for (of, claim), (code, expected) in SHOWN.items():
        if of != level:
            continue
        if expected == "locked seen":
            results = await asyncio.gather(box.run(code), box.run(code))
            assert " ".join(sorted(result.stdout.strip() for result in results)) == expected, claim
        elif expected == "rising":
            outputs = [int((await box.run(code)).stdout) for _ in range(12)]
            assert outputs[-1] > outputs[0] or outputs[0] > min(outputs), claim
            assert len(set(outputs)) == len(outputs), claim
        else:
            result = await box.run(code, memory_mb=100, timeout=60.0)
            assert re.fullmatch(expected, result.stdout.strip()), (claim, result)


async def test_users_of_levels_without_a_user_namespace(box):
    """The numbers of users inside are those outside."""
    result = asyncio.create_task(box.run("import os; os.execv('/bin/sleep', ['namespace_6108', '1000'])", timeout=900))
    async with asyncio.timeout(20):
        while not (found := list(box.processes("namespace_6108"))):  # noqa: ASYNC110 - nothing tells when it runs
            await asyncio.sleep(0.05)
    same = [os.readlink(f"/proc/{pid}/ns/user") == os.readlink("/proc/self/ns/user") for pid in found]
    result.cancel()
    await asyncio.wait([result])
    assert set(same) == {box.sandbox.level in ("docker", "landlock")}
