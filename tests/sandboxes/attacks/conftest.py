"""Run the attacks for real against every isolation level that claims to hold them.

A test that needs more than the common promise has `@pytest.mark.claim(name)`. `NOT_CLAIMED` lists which level does not
promise it, and why. docs/sandboxes.md prints the same table (test_claims.py).
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentloop import sandboxes
from agentloop.sandboxes.interface.sandbox import Execution, ExecutionResult, Sandbox
from agentloop.sandboxes.worlds import boot

LEVELS = ("slots", "bubblewrap", "docker", "landlock")
SECRET = "hunter2_in_the_environment"
DISK_MB = 64

OPTIONS: dict[str, dict[str, Any]] = {
    "slots": {"slots": 4, "disk_mb": DISK_MB, "preload": ("numpy",)},
    "bubblewrap": {"slots": 4, "disk_mb": DISK_MB, "packages": ("numpy",)},
    "docker": {"slots": 4, "disk_mb": DISK_MB},
    "landlock": {"slots": 4, "disk_mb": DISK_MB},
}

NOT_CLAIMED: dict[str, dict[str, str]] = {
    "slots": {},
    "bubblewrap": {
        "memory in sum": "it uses no cgroup: the limit holds for each process, and files in memory count as disk",
        "number of files": "bwrap makes a tmpfs that is limited in bytes only",
    },
    "docker": {
        "user namespace": "its user is 1000 on the host, too, but has no capabilities and can get none",
        "nosuid": "the image contains set-user-id programs, but no_new_privs makes them ordinary ones",
        "only what it needs": "the code sees all files of the image",
        "packages": "the image determines what can be imported",
    },
    "landlock": {
        "nosuid": "it sees set-user-id programs of the host, but no_new_privs makes them ordinary ones",
        "user namespace": "it has no namespaces: the code is a user of its own if the owner is root, else the owner",
        "memory in sum": "it uses no cgroup: the limit holds for each process",
        "disk in sum": "the limit holds for each file",
        "number of files": "there is no limit",
        "own /tmp, /mnt and /dev/shm": "the code can write to its working directory only",
        "loopback": "it has no sockets except pairs",
        "/proc": "it is not readable, not even for the code's own process",
        "packages": "as root of a Python below /root it runs the system's Python, which shows what Debian has",
    },
}


@dataclass(frozen=True)
class Box:
    """A sandbox to attack, and its processes as seen from the host."""

    sandbox: Sandbox

    async def run(self, code: str, **options: Any) -> ExecutionResult:
        return await self.sandbox.run(Execution(code=code, **{"timeout": 20.0, **options}))

    def processes(self, marker: str) -> dict[int, str]:
        """Return the processes of this machine whose command line contains `marker`."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if marker in command:
                found[int(path.parent.name)] = command
        return found


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "claim(name): only for isolation levels that promise this")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "level" not in metafunc.fixturenames:
        return
    claims = {mark.args[0] for mark in metafunc.definition.iter_markers("claim")}
    levels = [level for level in LEVELS if not claims & NOT_CLAIMED.get(level, {}).keys()]
    marked = [pytest.param(level, marks=pytest.mark.docker) if level == "docker" else level for level in levels]
    metafunc.parametrize("level", marked, scope="module")


@pytest.fixture(scope="module")
def interpreter(level: str) -> Iterator[None]:
    """A Python below /root cannot be reached by the user that landlock's code is: the system's is taken then."""
    with pytest.MonkeyPatch.context() as patch:
        if level == "landlock" and os.geteuid() == 0 and boot.INTERPRETER.startswith("/root/"):
            patch.setattr(boot, "INTERPRETER", os.path.realpath("/usr/bin/python3"))
            patch.setattr(sys, "base_prefix", "/usr")
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(level: str, interpreter: None) -> AsyncIterator[Box]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_TOKEN", SECRET)
        sandbox = sandboxes.create(level, **OPTIONS[level])
        await sandbox.start()
    yield Box(sandbox)
    await sandbox.close()
