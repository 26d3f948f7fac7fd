"""Cells that attack their session, its owner, and other sessions."""

import asyncio
import os
import time

import pytest
import pytest_asyncio

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface.sandbox import SessionSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest_asyncio.fixture(loop_scope="module")
async def session(box):
    session = await box.sandbox.session(SessionSettings(memory_mb=512))
    yield session
    await session.close()


# The socket to the owner is somewhere among the descriptors of the interpreter: code is free to find it.
CHANNEL = """
import array, os, socket
for fd in range(3, 100):
    try:
        channel = socket.socket(fileno=os.dup(fd))
        channel.getpeername()
        break
    except OSError:
        channel = None
open("leak_5531", "w")
mine = [os.open("leak_5531", os.O_RDONLY) for _ in range(3)]
def send(data, fds=()):
    channel.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
"""


@pytest.mark.parametrize(
    "attack",
    [
        "send(b'garbage')",
        "send(b'{')",
        "send(b'[1, 2]')",
        "send(b'null')",
        "send(b'{}')",
        'send(b\'{"cell": "x"}\')',
        "send(b'{\"cell\": 1e999}')",
        'send(b\'{"cell": 99, "ready": true}\')',
        "send(b'{\"cell\": 1}', mine * 60)",
        "send(b'x' * 200_000)",
        "send(b'[' * 60_000)",
        "[send(b'{\"cell\": %d}' % number, mine) for number in range(200)]",
        "channel.shutdown(socket.SHUT_RDWR)",
        "os.closerange(3, 100)",
    ],
)
async def test_forged_messages_affect_only_their_own_session(box, session, attack):
    for code in (CHANNEL + attack, "1 + 1", "print('later')"):
        try:
            await asyncio.wait_for(session.run(code, max_seconds=3.0), 20)
        except SandboxError:
            break
    await session.close()
    assert (await box.run("print('others')")).stdout == "others\n"
    other = await box.sandbox.session()
    assert (await other.run("6 * 7")).displays == ({"text/plain": "42"},)
    await other.close()
    assert not [link for link in own_descriptors() if "leak_5531" in link]


def own_descriptors() -> list[str]:
    return [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]


async def test_forged_displays_are_rejected(session):
    code = """
import os
for fd in range(3, 100):
    try:
        os.write(fd, b'{"display": [["image/png", 999999999]]}\\n{"error": 5}\\n[]\\n\\xff\\n{"display": {"a": -1}}\\n')
    except OSError:
        pass
"""
    result = await session.run(code)
    assert result.session_ended or result.displays == ()


async def test_interference_with_file_reads_is_contained(session):
    code = """
import os, threading, time
os.makedirs("d"); open("d/f", "w").write("own")
def interfere():
    own = os.getpid()
    while True:
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in (1, own):
                for fd in (1, 3, 4):
                    try:
                        with open(f"/proc/{name}/fd/{fd}", "wb", buffering=0) as pipe:
                            pipe.write(b'["d/f", 5]\\nhello\\n[1]\\n{"x"\\n["/etc/shadow", -7]\\n[[], {}]\\n')
                    except OSError:
                        pass
threading.Thread(target=interfere, daemon=True).start()
"""
    assert (await session.run(code)).error is None
    for _ in range(10):
        files = await session.read_files(["d/f", "missing"])
        assert files.keys() <= {"d/f", "/etc/shadow"}
        assert files.get("d/f", b"own") in (b"own", b"hello")


async def test_links_stay_inside_the_sandbox(session):
    code = """
import os
os.symlink("/etc", "etc"); os.symlink("/proc/1/root/etc/shadow", "shadow"); os.symlink("/", "root"); os.mkfifo("fifo")
"""
    await session.run(code)
    marker = f"from_outside_{os.getpid()}"
    for path in (f"etc/{marker}", f"root/etc/{marker}", "fifo"):
        with pytest.raises((SandboxError, UserError)):
            await session.write_files({path: b"x"})
    assert not exists(f"/etc/{marker}")
    assert await session.read_files(["shadow", "fifo", "root/etc/shadow", "etc/shadow"]) == {}
    await session.write_files({"fine": b"y"})
    assert await session.read_files(["fine"]) == {"fine": b"y"}


def exists(path: str) -> bool:
    return os.path.exists(path)


@pytest.mark.claim("own /tmp, /mnt and /dev/shm")
async def test_sessions_are_isolated(box, session):
    other = await box.sandbox.session()
    await session.run("x = 1; open('/tmp/mine', 'w').write('x'); import socket; s = socket.create_server(('', 7777))")
    result = await other.run("import os, socket; socket.create_server(('', 7777)); os.listdir('/tmp')")
    assert result.displays == ({"text/plain": "['work']"},)
    assert (await other.run("x")).error.name == "NameError"
    await other.close()


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\nwhile True:\n    try: time.sleep(100)\n    except BaseException: pass",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [2]); signal.pause()",
        "import os; os.kill(os.getpid(), 19)",
        "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    ],
)
async def test_cells_that_ignore_interrupts_are_ended(session, code):
    start = time.monotonic()
    result = await session.run(code, max_seconds=0.5)
    assert time.monotonic() - start < 10
    assert result.timed_out
    assert not result.session_ended or result.session_ended == "killed"


async def test_closed_session_leaves_no_process(box, session):
    code = "import subprocess; subprocess.Popen(['setsid', 'bash', '-c', 'exec -a session_9917 sleep 1000']); 'started'"
    assert (await session.run(code)).displays == ({"text/plain": "'started'"},)
    async with asyncio.timeout(20):
        while not box.processes("session_9917"):  # noqa: ASYNC110 - nothing tells when it runs
            await asyncio.sleep(0.05)
    await session.close()
    async with asyncio.timeout(5):
        while box.processes("session_9917"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_memory_and_output_of_cells_are_limited(session):
    result = await session.run("print('x' * 5_000_000)")
    assert len(result.stdout) == 1 << 20
    assert result.output_truncated
    result = await session.run("x = bytearray(100 << 30)")
    assert result.oom
    if not result.session_ended:
        assert (await session.run("'still here'")).ok
