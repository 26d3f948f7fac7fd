"""Run the attacks for real against every isolation level that claims to hold them.

A test that needs more than the common promise has `@pytest.mark.claim(name)`. `NOT_CLAIMED` lists the levels that do
not promise it, with the reason on the page. `ROWS` maps the rows of the table in docs/guides/sandboxes.md to
their tests. test_claims.py compares the two. test_not_promised.py shows
that attacks succeed where a level promises nothing.
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
        "locks on shown files": "see the same files of the host and can lock them, because programs need locks",
        "counters of the kernel": "Numbers of pipes and sockets come from one counter of the machine",
    },
    "bubblewrap": {
        "locks on shown files": "see the same files of the host and can lock them, because programs need locks",
        "counters of the kernel": "Numbers of pipes and sockets come from one counter of the machine",
        "memory of TCP": "The TCP buffers of its network namespace cannot be limited",
        "memory in sum": "the memory limit holds for each process, and files in memory count as disk",
        "number of files": "Its tmpfs is limited in bytes, not in number of files",
    },
    "docker": {
        "counters of the kernel": "Numbers of pipes and sockets come from one counter of the machine",
        "user namespace": "the user is also 1000 on the host, but has no capabilities and can get none",
        "nosuid": "The image contains set-user-id programs, but no_new_privs makes them ordinary ones",
        "only what it needs": "The code sees all files of the image",
        "packages": "the tests' packages are not in the image",
    },
    "landlock": {
        "locks on shown files": "see the same files of the host and can lock them, because programs need locks",
        "counters of earlier executions": "numbers of processes also come from one counter of the machine",
        "counters of the kernel": "Numbers of pipes and sockets come from one counter of the machine",
        "modes of own files": "a system call filter cannot tell them from the owner's files",
        "nosuid": "It sees set-user-id programs of the host, but no_new_privs makes them ordinary ones",
        "user namespace": "The code has a separate user if the owner is root; otherwise it is the owner",
        "memory in sum": "The memory limit holds for each process",
        "disk in sum": "the disk limit for each file",
        "number of files": "The number of files is unlimited",
        "own /tmp, /mnt and /dev/shm": "The code can write only to its working directory",
        "loopback": "It has no sockets except socket pairs",
        "/proc": "cannot read /proc",
        "packages": "if Python is below /root, the tests run the system's Python, which has Debian's packages",
    },
}

ROWS: dict[str, tuple[str, ...]] = {
    "read or change files, environment, descriptors and processes of the host": (
        *("test_secrets", "test_files::test_files_c*", "test_files::test_fetch_cannot*", "test_files::test_other*"),
        *("test_processes::test_other_processes*", "test_processes::test_kill*", "test_processes::test_harness*"),
    ),
    "reach the network: host, metadata service, DNS, vsock, netlink": (
        *("test_network", "test_kernel::test_unneeded*", "test_kernel::test_raw*"),
    ),
    "leave processes behind: daemons, fork bombs, ignored signals": (
        *("test_processes::test_daemon*", "test_processes::test_child*", "test_processes::test_cancelled*"),
        *("test_resources::test_fork_bomb*", "test_resources::test_nested*", "test_resources::test_thread*"),
    ),
    "exceed the time limit: loops, C code, stopped processes, exit handlers that hang": (
        *("test_resources::test_timeout*", "test_resources::test_short*"),
    ),
    "exceed the memory limit in one process": (
        *("test_resources::test_memory_bomb*", "test_resources::test_numpy*", "test_resources::test_shared*"),
        *("test_resources::test_limits*", "test_resources::test_libraries*"),
    ),
    "exceed the memory limit with all processes and files in memory together": (
        *("test_resources::test_memory_limit*", "test_resources::test_files_count*", "test_resources::test_pipe*"),
    ),
    "fill the disk with bytes": ("test_resources::test_disk*",),
    "fill the disk with many files": ("test_resources::test_file_count*",),
    "write endless output, or bytes that are not text": (
        *("test_encoding", "test_resources::test_output*", "test_resources::test_infinite*"),
        *("test_resources::test_many*", "test_resources::test_writes*"),
    ),
    "pass files in or out that are too many, too large or too deep, or archives that grow": (
        *("test_files::test_max*", "test_files::test_conf*", "test_files::test_over*", "test_files::test_own*"),
        *("test_files::test_fetched*", "test_files::test_zip*", "test_files::test_files_may*"),
        *("test_resources::test_huge*", "test_resources::test_deep*"),
    ),
    "reach kernel settings, devices, new namespaces, mounts, ptrace, bpf, io_uring, keys, perf": (
        *("test_kernel::test_kernel*", "test_kernel::test_dangerous*", "test_kernel::test_system*"),
        *("test_kernel::test_device*", "test_kernel::test_threads*"),
    ),
    "gain rights: root, capabilities, set-user-id programs": (
        *("test_kernel::test_code*", "test_kernel::test_setuid*"),
    ),
    "become root of the host by becoming root inside": ("test_kernel::test_root*",),
    "change modes, owners, times, attributes and flags of read-only files": ("test_shared::test_shown_files_keep*",),
    "change limits, priority or affinity of the sandbox's first process, or signal it": ("test_shared::test_first*",),
    "use up quotas of the machine: aio, watches, queued signals, locked memory, real time": (
        *("test_shared::test_quotas*", "test_shared::test_signals*"),
    ),
    "use up the TCP memory that all sockets of the machine share": ("test_shared::test_buffers*",),
    "leave traces for the next or a concurrent execution: files, sockets, shared memory, random state, memory of the "
    "interpreter": ("test_neighbours",),
    "watch neighbours: inotify, fanotify, dnotify, leases on visible files": ("test_shared::test_shown_files_cannot*",),
    "pass messages to the next execution: numbers of processes and files, times, network counters": (
        "test_shared::test_counters_tell*",
    ),
    "pass messages to a concurrent execution: locks on visible files": ("test_shared::test_locks*",),
    "pass messages to any execution: counters of the whole kernel": (),
    "forge messages, descriptors or displays of a session from a cell": ("test_sessions",),
    "end strangely, or break the interpreter or the sandbox": (
        *("test_processes::test_every*", "test_processes::test_exit*", "test_processes::test_early*"),
        *("test_processes::test_forked*", "test_processes::test_interpreter*"),
    ),
}
"""Row of the table -> tests, as file or file::pattern. The table promises a row at a level if all of them run there.
No level promises a row without tests."""
NOT_IN_THE_TABLE = {
    "packages",
    "loopback",
    "/proc",
    "own /tmp, /mnt and /dev/shm",
    "only what it needs",
    "nosuid",
    "modes of own files",
}
"""Claims on what a program can do or see. They decide no row; the page explains them in its list."""


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
    """Take the system's Python if ours is below /root, which the user of landlock's code cannot reach."""
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
