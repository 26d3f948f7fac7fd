"""The level `slots`: start, refusal, end, preloading, queues, users and cgroups."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.inside.isolation import cleanup
from agentloop.sandboxes.interface.sandbox import Execution, SandboxBusyError
from agentloop.sandboxes.levels.slots import Slots
from agentloop.sandboxes.worlds.cgroups import Cgroups
from tests.support.nobody import run_as_nobody

pytestmark = pytest.mark.slow

SLEEP = "import os; os.execv('/bin/sleep', ['{}', '1000'])"


def running_with(marker: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if marker.encode() in command.split(b"\0"):
            found.append(int(path.parent.name))
    return found


def status_of(pid: int) -> dict[str, str]:
    return dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(*paths: str) -> bool:
    return not any(map(os.path.exists, paths))


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.02)


@pytest.fixture
async def slots():
    sandbox = Slots(slots=2, disk_mb=16)
    await sandbox.start()
    yield sandbox
    await sandbox.close()


async def test_sandbox_starts_on_first_use_and_only_once():
    sandbox = Slots(slots=2)
    results = await asyncio.gather(*[sandbox.run(Execution(code=f"print({index})")) for index in range(4)])
    assert [result.stdout for result in results] == ["0\n", "1\n", "2\n", "3\n"]
    template = sandbox.template
    await sandbox.start()
    assert sandbox.template is template
    await sandbox.close()
    await sandbox.close()


def test_sandbox_serves_successive_event_loops():
    sandbox = Slots(slots=1)
    for _ in range(3):
        assert asyncio.run(sandbox.run(Execution(code="print(1)"))).stdout == "1\n"
    asyncio.run(sandbox.close())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('not today')", "not today"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "threads"),
    ],
)
async def test_module_that_cannot_be_preloaded_fails_the_start(tmp_path, source, reason):
    (package := tmp_path / "unfit").mkdir()
    (package / "__init__.py").write_text(source)
    sandbox = Slots(preload=["unfit"])
    sandbox.rootfs = type(sandbox.rootfs)(
        sandbox.rootfs.interpreter,
        (*sandbox.rootfs.binds, (str(package), "/opt/packages/unfit")),
        sandbox.rootfs.links,
        sandbox.rootfs.tmpfs_mb,
    )
    with pytest.raises(UserError, match=f"'unfit' of preload cannot be imported .*{reason}"):
        await sandbox.start()
    assert sandbox.template is None
    assert sandbox.cgroups is None


def test_invalid_options_raise():
    with pytest.raises(UserError, match="slots must be at least 1"):
        Slots(slots=0)
    with pytest.raises(UserError, match="belong to the code"):
        Slots(binds=["/tmp"])


async def test_dead_slot_fails_its_execution_and_is_replaced(slots):
    running = asyncio.create_task(slots.run(Execution(code=SLEEP.format("dead_slot_41"), timeout=100)))
    await until(lambda: running_with("dead_slot_41"))
    (pid,) = running_with("dead_slot_41")
    os.kill(int(status_of(pid)["PPid"]), signal.SIGKILL)
    with pytest.raises(SandboxError, match="died"):
        await running
    results = await asyncio.gather(*[slots.run(Execution(code="print(1)")) for _ in range(4)])
    assert [result.stdout for result in results] == ["1\n"] * 4
    assert running_with("dead_slot_41") == []


async def test_dead_template_fails_running_executions_and_is_replaced(slots):
    running = asyncio.create_task(slots.run(Execution(code=SLEEP.format("dead_template_42"), timeout=100)))
    await until(lambda: running_with("dead_template_42"))
    os.kill(slots.template.process.pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="died"):
        await running
    await until(lambda: not slots.template.alive)
    assert (await slots.run(Execution(code="print('again')"))).stdout == "again\n"
    assert running_with("dead_template_42") == []


async def test_executions_are_served_in_arrival_order(slots):
    order = []

    async def one(index):
        await slots.run(Execution(code="import time; time.sleep(0.05)"))
        order.append(index)

    await asyncio.gather(*[one(index) for index in range(10)])
    # Two run at once, and a busy machine may hold one of them up.
    assert all(abs(place - index) <= 3 for place, index in enumerate(order)), order


async def test_exceeded_queue_limit_raises_and_uses_no_slot(slots):
    slow = [asyncio.create_task(slots.run(Execution(code="import time; time.sleep(1)"))) for _ in range(2)]
    await until(lambda: slots.load().busy == 2)
    with pytest.raises(SandboxBusyError, match=r"2 are busy"):
        await slots.run(Execution(code="print(1)"), max_queue_seconds=0.05)
    waiting = asyncio.create_task(slots.run(Execution(code="print(2)")))
    await until(lambda: slots.load().waiting == 1)
    waiting.cancel()
    last = await slots.run(Execution(code="print(3)"))
    assert last.stdout == "3\n"
    assert last.queue_seconds > 0.2
    await asyncio.gather(*slow)
    await until(lambda: slots.load().busy == 0)
    assert slots.load().waiting == 0


async def test_slot_is_reused(slots):
    code = "import os; print(os.stat('/proc/self/ns/pid').st_ino)"
    names = {(await slots.run(Execution(code=code))).stdout for _ in range(12)}
    assert len(names) <= 2


async def test_random_numbers_differ_between_executions():
    sandbox = Slots(slots=1, preload=["numpy", "random"])
    code = "import random, numpy; print(random.random(), numpy.random.rand(), numpy.random.default_rng().random())"
    lines = [(await sandbox.run(Execution(code=code))).stdout.split() for _ in range(3)]
    await sandbox.close()
    for column in zip(*lines, strict=True):
        assert len(set(column)) == 3


async def test_preloaded_modules_are_available_immediately():
    sandbox = Slots(slots=1, preload=["numpy"])
    code = "import sys; print('numpy' in sys.modules); import numpy; print(numpy.ones(3).sum())"
    result = await sandbox.run(Execution(code=code))
    await sandbox.close()
    assert result.stdout == "True\n3.0\n"


async def test_open_files_are_flushed_at_exit(slots):
    code = """
class Talks:
    def __del__(self): print("gone")
talks, file = Talks(), open("out.txt", "w")
file.write("not closed")
cycle = [file]; cycle.append(cycle)
import atexit; atexit.register(print, "atexit")
"""
    result = await slots.run(Execution(code=code, fetch_files=["out.txt"]))
    assert (result.stdout, result.stderr) == ("atexit\ngone\n", "")
    assert result.files == {"out.txt": b"not closed"}


@pytest.mark.parametrize(
    "files", [{"a": b"", "a/b": b""}, {"big": bytes(17 << 20)}, {"x" * 300: b""}], ids=["path", "size", "name"]
)
async def test_unwritable_files_raise_to_the_caller(slots, files):
    with pytest.raises(UserError, match="files cannot be written"):
        await slots.run(Execution(code="print(1)", files=files))
    assert (await slots.run(Execution(code="print(1)"))).ok


async def test_fetched_files_are_limited(slots):
    code = "open('a', 'w').write('x' * 100); open('b', 'w').write('y' * 1000); open('c', 'w').write('z' * 100)"
    result = await slots.run(Execution(code=code, fetch_files=["a", "b", "c", "none"], fetch_bytes=250))
    assert sorted(result.files) == ["a", "c"]
    assert result.files_truncated


async def test_code_runs_as_an_unprivileged_host_user(slots):
    running = asyncio.create_task(slots.run(Execution(code=SLEEP.format("whose_43"), timeout=100)))
    await until(lambda: running_with("whose_43"))
    (pid,) = running_with("whose_43")
    status = status_of(pid)
    running.cancel()
    users = set(map(int, status["Uid"].split()))
    assert len(users) == 1
    assert (users.pop() > 65534) == (os.geteuid() == 0)
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == int(status["CapPrm"], 16) == 0


async def test_memory_limit_covers_all_processes(slots):
    assert slots.has_cgroups, "this test needs cgroups that may be written"
    code = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        block = bytearray(40 << 20)
        time.sleep(3)
        os._exit(0)
x = bytearray(60 << 20)
for _ in range(6):
    print(os.wait()[1])
"""
    result = await slots.run(Execution(code=code, memory_mb=128, timeout=20))
    assert "9" in result.stdout.split() or result.oom  # somebody was killed: 300 MB do not fit
    small = await slots.run(Execution(code="x = bytearray(60 << 20); print(len(x))", memory_mb=128))
    assert small.stdout == f"{60 << 20}\n"
    assert not small.oom


ORPHAN = """
import asyncio
from agentloop.sandboxes import Execution, SessionSettings
from agentloop.sandboxes.inside.isolation import cleanup
from agentloop.sandboxes.levels.slots import Slots
async def main():
    sandbox = Slots(slots=2)
    session = await sandbox.session()
    sleep = "import os; os.execv('/bin/sleep', ['orphan_44', '1000'])"
    await asyncio.gather(
        sandbox.run(Execution(code=sleep, timeout=1000)),
        session.run("import os; os.spawnv(os.P_WAIT, '/bin/sleep', ['orphan_44', '1000'])", max_seconds=1e3),
    )
asyncio.run(main())
"""


@pytest.mark.parametrize("also_the_template", [False, True])
async def test_all_processes_die_with_a_killed_owner(also_the_template):
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN])  # noqa: ASYNC220
    await until(lambda: len(running_with("orphan_44")) == 2)
    templates = children_of(parent.pid)
    if also_the_template:
        for template in templates:
            os.kill(template, signal.SIGKILL)
    parent.kill()
    parent.wait()
    await until(lambda: not running_with("orphan_44"))
    await until(lambda: gone(*(f"/proc/{template}" for template in templates)))
    if also_the_template:
        sandbox = Slots(slots=1)  # the next start clears up
        await sandbox.start()
        await sandbox.close()
    await until(
        lambda: (
            not [folder for folder, *_ in os.walk("/sys/fs/cgroup") if Path(folder).match(f"agentloop-{parent.pid}-*")]
        )
    )


UNPRIVILEGED = """
import asyncio, os, sys
from agentloop.sandboxes import Execution
from agentloop.sandboxes.inside.isolation import cleanup
from agentloop.sandboxes.levels.slots import Slots
async def main():
    assert os.geteuid() == 65534
    sandbox = Slots(slots=2, max_processes=20)
    code = '''
import os, sys
print(os.getuid(), open("/proc/self/uid_map").read().split())
for path in ("/proc/1/environ", "/proc/sys/kernel/core_pattern", "/etc/shadow"):
    try: print("opened", open(path, "r+"))
    except OSError as error: pass
children = 0
try:
    while True:
        if os.fork() == 0: __import__("time").sleep(60)
        children += 1
except OSError: print("children", children < 20)
for number in (2, 9, 15, 17):
    try: os.kill(1, number)
    except OSError: pass
print(int(next(l for l in open("/proc/self/status") if l.startswith("CapEff")).split()[1], 16))
'''
    for _ in range(4):
        result = await sandbox.run(Execution(code=code))
        print(result.stdout + result.stderr, end="")
    attack = '''
import resource
try: resource.prlimit(1, resource.RLIMIT_STACK, (1 << 20, 1 << 20))
except PermissionError: print("refused")
'''
    after = "import resource as r; print(r.getrlimit(r.RLIMIT_STACK)[0] == 1 << 20)"
    for _ in range(2):  # the kernel would let it: they have the same user
        print((await sandbox.run(Execution(code=attack))).stdout, end="")
    for _ in range(4):
        print((await sandbox.run(Execution(code=after))).stdout, end="")
    session = await sandbox.session()
    print((await session.run("6 * 7")).displays)
    await sandbox.close()
asyncio.run(main())
"""


def test_sandbox_needs_no_privileges():
    process = run_as_nobody(UNPRIVILEGED)
    once = "1000 ['1000', '1000', '1']\nchildren True\n0\n"
    after = "refused\n" * 2 + "False\n" * 4
    assert (process.stdout, process.stderr) == (once * 4 + after + "({'text/plain': '42'},)\n", "")


def test_cgroups_v2_are_used(tmp_path):
    own = tmp_path / "service"
    own.mkdir()
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    for name, text in (
        ("cgroup.controllers", "memory pids"),
        ("cgroup.subtree_control", ""),
        ("cgroup.procs", f"{os.getpid()}"),
    ):
        (own / name).write_text(text)
    found = Cgroups.find(tmp_path, [("", "/service")])
    assert found is not None
    assert (own / "agentloop-main" / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"
    cgroup = found.create(9)
    cgroup.limit(1 << 20)
    cgroup.add(77)
    directory = cgroup.directories["memory"]
    assert directory.parent.parent == own
    assert [(directory / name).read_text() for name in ("pids.max", "memory.max", "cgroup.procs")] == [
        "9",
        "1048576",
        "77",
    ]
    (directory / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert cgroup.ran_out_of_memory()
    assert not cgroup.ran_out_of_memory()


def test_cgroups_v2_limit_processor_time_where_they_may(tmp_path):
    own = tmp_path / "service"
    own.mkdir()
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    for name, text in (
        ("cgroup.controllers", "cpu memory pids"),
        ("cgroup.subtree_control", "memory pids"),
        ("cgroup.procs", ""),
    ):
        (own / name).write_text(text)
    found = Cgroups.find(tmp_path, [("", "/service")], cpus=True)
    assert found is not None
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    cgroup = found.create(9)
    assert cgroup.limit_cpus(1.5)
    assert (cgroup.directories["cpu"] / "cpu.max").read_text() == "150000 100000"
    plain = Cgroups.find(tmp_path, [("", "/service")])
    assert plain is not None
    assert not plain.create(9).limit_cpus(1.5)


def test_cgroups_are_skipped_without_permission(tmp_path):
    assert Cgroups.find(tmp_path, [("memory", "/x"), ("pids", "/x")]) is None


def test_stale_cgroups_are_removed_by_several_starts_at_once(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    for name in ("memory", "pids"):
        for index in range(200):
            (tmp_path / name / f"agentloop-{dead.pid}-{index:08x}" / "slot-1").mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        starts = [pool.submit(Cgroups.find, tmp_path, [("memory", "/"), ("pids", "/")]) for _ in range(8)]
        found = [start.result() for start in starts]
    assert all(found)
    for name in ("memory", "pids"):
        assert len(list((tmp_path / name).iterdir())) == len(found)


async def test_each_process_is_limited_without_cgroups(monkeypatch):
    monkeypatch.setattr(Cgroups, "find", classmethod(lambda cls: None))
    sandbox = Slots(slots=1)
    result = await sandbox.run(Execution(code="x = bytearray(300 << 20)", memory_mb=128))
    assert not sandbox.has_cgroups
    await sandbox.close()
    assert result.return_code == 1
    assert result.oom


async def test_close_leaves_nothing_behind(slots):
    before = len(os.listdir("/proc/self/fd"))
    sandbox = Slots(slots=3)
    await asyncio.gather(*[sandbox.run(Execution(code="print(1)")) for _ in range(9)])
    session = await sandbox.session()
    await session.run("1")
    pid = sandbox.template.process.pid
    paths = sandbox.cgroups.paths
    await sandbox.close()
    assert gone(f"/proc/{pid}", *paths)
    await asyncio.sleep(0.1)
    assert len(os.listdir("/proc/self/fd")) == before
    start = time.monotonic()
    await session.close()
    assert time.monotonic() - start < 5


def test_directory_of_any_depth_is_removed(tmp_path):
    (top := tmp_path / "world").mkdir()
    code = """
import os
os.symlink("/etc", "link")
os.mkdir("closed", 0)
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
"""
    subprocess.run([sys.executable, "-c", code], cwd=top, check=True)
    cleanup.remove_directory(str(top))
    assert not top.exists()
    assert os.listdir("/etc")


async def test_close_ends_running_and_waiting_executions():
    sandbox = Slots(slots=1)
    tasks = [asyncio.create_task(sandbox.run(Execution(code=SLEEP.format("closed_45"), timeout=100))) for _ in range(3)]
    await until(lambda: running_with("closed_45") and sandbox.load().waiting == 2)
    await sandbox.close()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, SandboxError)
    assert running_with("closed_45") == []


async def test_connection_buffers_count_toward_memory(slots):
    code = """
import socket
held, ends = 0, []
server = socket.create_server(("127.0.0.1", 0))
for _ in range(30):
    ends += [writer := socket.create_connection(server.getsockname()), server.accept()[0]]
    writer.setblocking(False)
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
    try:
        while True:
            held += writer.send(bytes(65536))
    except BlockingIOError:
        print(held)
"""
    result = await slots.run(Execution(code=code, memory_mb=32, timeout=30.0))
    held = int(result.stdout.split()[-1])
    assert (held < 64 << 20) == slots.has_cgroups, held
