"""The level `docker`, against a real engine and an image made by scripts/sandbox-image."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentloop.errors import UserError
from agentloop.process.owned_folders import is_dead, own_label
from agentloop.sandboxes import Execution, SessionSettings
from agentloop.sandboxes.levels.docker import Docker
from agentloop.sandboxes.levels.docker_engine import Engine

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Docker]:
    before = set(_containers())  # boxes of earlier tests end with this process
    sandbox = Docker(slots=2, disk_mb=32, max_processes=32)
    await sandbox.start()
    yield sandbox
    await sandbox.close()
    await _until(lambda: set(_containers()) <= before)  # the engine lists what it is about to remove


def _containers() -> list[str]:
    engine = Engine.connect()
    try:
        return [container.id for container in engine.labelled() if container.owner == own_label()]
    finally:
        engine.close()


async def run(sandbox: Docker, code: str, **options):
    return await sandbox.run(Execution(code=code, **{"timeout": 30.0, **options}))


async def test_output_files_and_exit_code_are_returned(sandbox):
    code = "import sys; print(input(), open('a/b').read()); open('/mnt/c', 'w').write('out'); sys.exit(3)"
    result = await run(sandbox, code, stdin="in", files={"a/b": b"file"}, fetch_files=["/mnt/c", "missing"])
    assert (result.stdout, result.stderr, result.return_code) == ("in file\n", "", 3)
    assert result.files == {"/mnt/c": b"out"}


async def test_traceback_has_no_harness_frames(sandbox):
    result = await run(sandbox, "1 / 0")
    assert result.stderr.count("File ") == 1
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


async def test_other_languages_come_from_the_image(sandbox):
    assert (await run(sandbox, "echo $((6 * 7))", language="bash")).stdout == "42\n"
    with pytest.raises(UserError, match=r"needs the program rustc"):
        await run(sandbox, "fn main() {}", language="rust")


async def test_time_and_memory_are_limited(sandbox):
    result = await run(sandbox, "print('before', flush=True)\nwhile True: pass", timeout=0.5)
    assert (result.timed_out, result.return_code, result.stdout) == (True, None, "before\n")
    assert (await run(sandbox, "bytearray(300 << 20)", memory_mb=128)).oom
    touch = "import mmap; m = mmap.mmap(-1, 300 << 20)\nfor i in range(0, len(m), 4096): m[i] = 1"
    result = await run(sandbox, touch, memory_mb=128)
    assert (result.oom, result.return_code) == (True, 137)


async def test_memory_above_the_container_limit_is_rejected(sandbox):
    with pytest.raises(UserError, match="larger memory_mb"):
        await run(sandbox, "", memory_mb=1 << 20)
    with pytest.raises(UserError, match="larger memory_mb"):
        await sandbox.session(SessionSettings(memory_mb=1 << 20))


async def test_processes_and_disk_are_limited(sandbox):
    fork = "import os, time\nfor n in range(1000):\n  if os.fork() == 0: time.sleep(60)"
    result = await run(sandbox, fork)
    assert "Resource temporarily unavailable" in result.stderr
    fill = "import os\nfor n in range(9): open(f'{n}', 'wb').write(bytes(8 << 20))"
    assert "No space left on device" in (await run(sandbox, fill)).stderr
    assert "Read-only file system" in (await run(sandbox, "open('/usr/x', 'w')")).stderr


async def test_container_has_no_network_capabilities_or_neighbours(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    code = """
import os, socket
try:
    socket.create_connection(("1.1.1.1", 53), timeout=5)
except OSError as error:
    print(error.strerror)
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print({name: status[name].strip() for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")})
print(os.getuid(), [pid for pid in os.listdir("/proc") if pid.isdigit()] == ["1", str(os.getpid())])
print(sorted(os.environ))
"""
    lines = (await run(sandbox, code)).stdout.splitlines()
    assert lines[0] == "Network is unreachable"
    assert lines[1] == str({"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"})
    assert lines[2] == "1000 True"
    assert "SECRET" not in lines[3]


async def test_execution_leaves_nothing_for_the_next(sandbox):
    await run(sandbox, "open('/tmp/left', 'w'); open('/dev/shm/left', 'w'); open('/mnt/left', 'w')")
    listing = "import os; print([os.listdir(path) for path in ('/tmp', '/dev/shm', '/mnt', '.')])"
    for _ in range(3):
        assert (await run(sandbox, listing)).stdout == "[['work'], [], [], ['main.py']]\n"


async def test_session_keeps_state(sandbox):
    session = await sandbox.session()
    await session.run("x = 6")
    result = await session.run("x * 7")
    assert result.displays == ({"text/plain": "42"},)
    await session.write_files({"f": b"content"})
    assert (await session.read_files(["f"])) == {"f": b"content"}
    stuck = await session.run("while True: pass", max_seconds=0.5)
    assert stuck.timed_out
    assert (await session.run("x")).displays == ({"text/plain": "6"},)
    await session.close()


async def test_concurrent_executions_get_their_own_results(sandbox):
    results = await asyncio.gather(*[run(sandbox, f"print({number})") for number in range(6)])
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(6)]


async def test_cancellation_ends_the_container(sandbox):
    running = asyncio.create_task(run(sandbox, "import time; time.sleep(100)", timeout=100))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await run(sandbox, "print(1)")).stdout == "1\n"


async def test_missing_engine_and_image_are_named(monkeypatch):
    with pytest.raises(UserError, match=r"no image 'nothing:here'.*scripts/sandbox-image"):
        await Docker(image="nothing:here").start()
    with pytest.raises(UserError, match="no runtime 'kata'"):
        await Docker(runtime="kata").start()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with pytest.raises(UserError, match=r"'docker' does not work.*apt-get install docker.io"):
        await Docker().start()


async def test_only_leftovers_of_a_killed_owner_are_removed(sandbox):
    code = """
import asyncio
from agentloop.process.owned_folders import is_dead, own_label
from agentloop.sandboxes import Execution
from agentloop.sandboxes.levels.docker import Docker
async def main():
    sandbox = Docker(slots=1, spare=0)
    await sandbox.start()
    session = await sandbox.session()
    print("open", flush=True)
    await session.run("import time; time.sleep(1000)", max_seconds=1000)
asyncio.run(main())
"""
    owner = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert await asyncio.to_thread(owner.stdout.readline) == b"open\n"
    engine = Engine.connect()

    def states() -> list[str]:
        return [container.state for container in engine.labelled() if container.owner.split()[1] == str(owner.pid)]

    await _until(lambda: states() == ["running"])
    await asyncio.to_thread(engine.remove_leftovers)
    assert states() == ["running"]
    assert _folders(owner.pid)
    owner.kill()
    owner.communicate()
    await _until(lambda: states() == ["exited"])
    mine = _containers()
    another = Docker(spare=0)
    await another.start()
    await another.close()
    assert states() == []
    assert not _folders(owner.pid)
    assert _containers() == mine
    engine.close()


async def test_a_container_that_is_made_for_a_cancelled_caller_is_removed(monkeypatch):
    create, made = Engine.create, []

    def slowly(self, *given):
        time.sleep(0.5)
        made.append(create(self, *given))
        return made[-1]

    monkeypatch.setattr(Engine, "create", slowly)
    before = _containers()
    sandbox = Docker(slots=1, spare=0, disk_mb=32, max_processes=32)
    await sandbox.start()
    cancelled = asyncio.create_task(run(sandbox, "print(1)"))
    await asyncio.sleep(0.2)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await sandbox.close()
    assert len(made) == 2, "one for the probe at start, one for the cancelled caller"
    await _until(lambda: _containers() == before)


async def test_containers_of_other_hosts_are_kept():
    namespace, pid, started = own_label().split()
    assert not is_dead(f"{namespace} {pid} {started}")
    assert is_dead(f"{namespace} {pid} 1")
    assert is_dead(f"{namespace} 99999999 {started}")
    assert not is_dead(f"1{namespace} 99999999 {started}")


def _folders(pid: int) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"agentloop-docker-*-{pid}-*"))


async def _until(condition) -> None:
    deadline = time.monotonic() + 60
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
