"""Run the attacks for real against every isolation level that claims to hold them.

A test that needs more than the common promise has `@pytest.mark.claim(name)`. `NOT_CLAIMED` lists which level does not
promise it, and why. `ROWS` maps
the rows of the table in docs/guides/sandboxes.md to the tests behind them; test_claims.py compares the two, and
test_not_promised.py shows that what is not promised does not hold.
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
    "slots": {
        "locks on shown files": "the files are those of the host, and programs need locks",
        "counters of the kernel": "numbers of pipes and sockets come from one counter of the machine",
    },
    "bubblewrap": {
        "locks on shown files": "the files are those of the host, and programs need locks",
        "counters of the kernel": "numbers of pipes and sockets come from one counter of the machine",
        "memory of TCP": "nobody may set the buffers of its network namespace",
        "memory in sum": "it uses no cgroup: the limit holds for each process, and files in memory count as disk",
        "number of files": "bwrap makes a tmpfs that is limited in bytes only",
    },
    "docker": {
        "counters of the kernel": "numbers of pipes and sockets come from one counter of the machine",
        "user namespace": "its user is 1000 on the host, too, but has no capabilities and can get none",
        "nosuid": "the image contains set-user-id programs, but no_new_privs makes them ordinary ones",
        "only what it needs": "the code sees all files of the image",
        "packages": "the image determines what can be imported",
    },
    "landlock": {
        "locks on shown files": "the files are those of the host, and programs need locks",
        "counters of earlier executions": "numbers of processes come from one counter of the machine",
        "counters of the kernel": "numbers of pipes and sockets come from one counter of the machine",
        "modes of own files": "a filter of system calls cannot tell them from the owner's files",
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

ROWS: dict[str, tuple[str, ...]] = {
    "files, environment, descriptors and processes of the host are read or changed": (
        *("test_secrets", "test_files::test_files_c*", "test_files::test_fetch_cannot*", "test_files::test_other*"),
        *("test_processes::test_other_processes*", "test_processes::test_kill*", "test_processes::test_harness*"),
    ),
    "the network is reached: host, metadata service, DNS, vsock, netlink": (
        *("test_network", "test_kernel::test_unneeded*", "test_kernel::test_raw*"),
    ),
    "processes outlive the execution: daemons, fork bombs, ignored signals": (
        *("test_processes::test_daemon*", "test_processes::test_child*", "test_processes::test_cancelled*"),
        *("test_resources::test_fork_bomb*", "test_resources::test_nested*", "test_resources::test_thread*"),
    ),
    "time limits: loops, C code, stopped processes, exit handlers that hang": (
        *("test_resources::test_timeout*", "test_resources::test_short*"),
    ),
    "memory limit of one process": (
        *("test_resources::test_memory_bomb*", "test_resources::test_numpy*", "test_resources::test_shared*"),
        *("test_resources::test_limits*", "test_resources::test_libraries*"),
    ),
    "memory limit of all processes and files in memory together": (
        *("test_resources::test_memory_limit*", "test_resources::test_files_count*", "test_resources::test_pipe*"),
    ),
    "the disk is filled: bytes": ("test_resources::test_disk*",),
    "the disk is filled: number of files": ("test_resources::test_file_count*",),
    "endless output, or bytes that are not text": (
        *("test_encoding", "test_resources::test_output*", "test_resources::test_infinite*"),
        *("test_resources::test_many*", "test_resources::test_writes*"),
    ),
    "files in and out: too many, too large, too deep, archives that grow": (
        *("test_files::test_max*", "test_files::test_conf*", "test_files::test_over*", "test_files::test_own*"),
        *("test_files::test_fetched*", "test_files::test_zip*", "test_files::test_files_may*"),
        *("test_resources::test_huge*", "test_resources::test_deep*"),
    ),
    "kernel settings, devices, new namespaces, mounts, ptrace, bpf, io_uring, keys, perf": (
        *("test_kernel::test_kernel*", "test_kernel::test_dangerous*", "test_kernel::test_system*"),
        *("test_kernel::test_device*", "test_kernel::test_threads*"),
    ),
    "rights are gained: root, capabilities, set-user-id programs": (
        *("test_kernel::test_code*", "test_kernel::test_setuid*"),
    ),
    "root inside would be root outside": ("test_kernel::test_root*",),
    "modes, owners, times, attributes and flags of files that the code may only read": (
        "test_shared::test_shown_files_keep*",
    ),
    "limits, priority, affinity or signals reach the first process of the sandbox": ("test_shared::test_first*",),
    "quotas of the machine are taken: aio, watches, queued signals, locked memory, real time": (
        *("test_shared::test_quotas*", "test_shared::test_signals*"),
    ),
    "memory of TCP, which all sockets of the machine share, is taken": ("test_shared::test_buffers*",),
    "traces left for the next or a concurrent execution: files, sockets, shared memory, random state, memory of the "
    "interpreter": ("test_neighbours",),
    "neighbours are watched: inotify, fanotify, dnotify, leases on shown files": (
        "test_shared::test_shown_files_cannot*",
    ),
    "messages to the next execution: numbers of processes and files, times, counters of the network": (
        "test_shared::test_counters_tell*",
    ),
    "messages to a concurrent execution: locks on shown files": ("test_shared::test_locks*",),
    "messages to any execution: counters of the whole kernel": (),
    "cells that forge messages, descriptors or displays of their session": ("test_sessions",),
    "programs that end strangely or break their interpreter or sandbox": (
        *("test_processes::test_every*", "test_processes::test_exit*", "test_processes::test_early*"),
        *("test_processes::test_forked*", "test_processes::test_interpreter*"),
    ),
}
"""Row of the table -> tests, as file or file::pattern. The table promises a row at a level if all of them run there.
A row without tests is promised by no level."""
NOT_IN_THE_TABLE = {
    "packages",
    "loopback",
    "/proc",
    "own /tmp, /mnt and /dev/shm",
    "only what it needs",
    "nosuid",
    "modes of own files",
}
"""Claims that decide what a program can do or sees, not whether a row holds. The page names them in its list."""


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
