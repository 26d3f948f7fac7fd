"""The level `bubblewrap`: start, refusal and end."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface.sandbox import Execution
from agentloop.sandboxes.levels.bubblewrap import Bubblewrap

pytestmark = pytest.mark.slow


async def test_missing_bwrap_raises_and_names_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox = Bubblewrap()
    with pytest.raises(UserError, match="apt-get install bubblewrap"):
        await sandbox.start()
    with pytest.raises(UserError, match="apt-get install bubblewrap"):
        await sandbox.run(Execution(code="print(1)"))


async def test_a_failing_bwrap_names_the_permission_to_grant(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/perl")
    with pytest.raises(UserError, match=r"Unrecognized switch: --args.*user namespaces"):
        await Bubblewrap().start()


async def test_sandbox_starts_on_first_use_and_only_once():
    sandbox = Bubblewrap()
    results = await asyncio.gather(*[sandbox.run(Execution(code=f"print({index})")) for index in range(4)])
    assert [result.stdout for result in results] == ["0\n", "1\n", "2\n", "3\n"]
    spawner = sandbox.spawner
    await sandbox.start()
    assert sandbox.spawner is spawner
    await sandbox.close()
    await sandbox.close()


async def test_code_runs_unprivileged_even_as_root():
    sandbox = Bubblewrap()
    await sandbox.start()
    pid = sandbox.spawner.process.pid
    status = dict(line.split(":\t") for line in _read(Path(f"/proc/{pid}/status")).decode().splitlines())
    await sandbox.close()
    assert "0" not in status["Uid"].split()
    assert int(status["CapEff"], 16) == 0
    if os.geteuid() == 0:
        assert int(status["CapBnd"], 16) == 0
        assert status["Groups"].strip() == ""


async def test_dead_launcher_fails_running_executions_and_is_replaced():
    sandbox = Bubblewrap()
    await sandbox.start()
    running = asyncio.create_task(sandbox.run(Execution(code="import time; time.sleep(60)", timeout=100)))
    await asyncio.sleep(0.3)
    os.kill(sandbox.spawner.process.pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="died"):
        await running
    assert (await sandbox.run(Execution(code="print('again')"))).stdout == "again\n"
    await sandbox.close()


def test_sandbox_serves_successive_event_loops():
    sandbox = Bubblewrap()
    for _ in range(2):
        assert asyncio.run(sandbox.run(Execution(code="print(1)"))).stdout == "1\n"


def test_all_processes_die_with_a_killed_parent(tmp_path):
    code = """
import asyncio
from agentloop.sandboxes import Execution, create
attack = "import os; os.execv('/bin/sleep', ['orphan_3107', '1000'])"
asyncio.run(create().run(Execution(code=attack, timeout=1000)))
"""
    parent = subprocess.Popen([sys.executable, "-c", code])

    def is_running() -> bool:
        return any(_read(path) == b"orphan_3107\x001000\0" for path in Path("/proc").glob("[0-9]*/cmdline"))

    _wait_for(is_running)
    parent.kill()
    parent.wait()
    _wait_for(lambda: not is_running())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _wait_for(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
