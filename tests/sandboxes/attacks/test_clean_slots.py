"""After the whole attack suite, run at 8-way concurrency against one `Slots`: nothing is left, all slots are as new."""

import asyncio
import gc
import importlib.util
import inspect
import itertools
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentloop.sandboxes.interface.sandbox import Execution, SessionSettings
from agentloop.sandboxes.levels.slots import Slots

pytestmark = pytest.mark.slow

ATTACKS = Path(__file__).parent
SLOTS = 8

# Everything that an execution could find of those before it.
LOOK = """
import builtins, gc, json, os, resource, signal, socket, sys, threading, time
import numpy
print([sorted(os.listdir(path)) for path in ("/tmp", "/tmp/work", "/mnt", "/dev/shm")], os.getcwd())
print([oct(os.stat(path).st_mode & 0o7777) for path in ("/tmp", "/mnt", "/dev/shm", ".")])
print([os.statvfs(path).f_bfree for path in ("/tmp", "/mnt", "/dev/shm")])
print(sorted(os.environ.items()), oct(os.umask(0o22)), os.nice(0), sys.argv)
print({number: str(signal.getsignal(number)) for number in signal.valid_signals()})
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending(), signal.getitimer(signal.ITIMER_REAL))
print(sorted(sys.modules), sorted(vars(builtins)), len(vars(json)), sys.path, sys.getrecursionlimit())
print([resource.getrlimit(number)[1] for number in range(16) if number != resource.RLIMIT_DATA])
print([name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())])
print(sorted(os.listdir("/proc/self/fd")), threading.active_count(), gc.get_threshold(), sys.getswitchinterval())
print([open(f"/proc/net/{name}").read().count("\\n") for name in ("tcp", "udp", "unix")])
print(open("/proc/self/mountinfo").read().count("\\n"))
socket.create_server(("127.0.0.1", 8000)).close()
time.sleep(1)  # so that each of as many as there are slots has a slot of its own
"""
RANDOM = "import random, uuid, numpy; print(random.random(), uuid.uuid4(), numpy.random.rand(), numpy.random.bytes(4))"


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]

    async def run(self, box: Any) -> None:
        wanted = inspect.signature(self.function).parameters
        with tempfile.TemporaryDirectory() as directory:
            session = await box.sandbox.session(SessionSettings(memory_mb=512)) if "session" in wanted else None
            fixtures = {"box": box, "session": session, "tmp_path": Path(directory)}
            await self.function(**self.arguments, **{name: fixtures[name] for name in wanted if name in fixtures})
            if session is not None:
                await session.close()


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"attacks_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> Iterator[Case]:
    """Every attack that slots claim to hold with each of its parameters, as pytest would call it."""
    not_claimed = load(ATTACKS / "conftest.py").NOT_CLAIMED["slots"]
    for path in sorted(set(ATTACKS.glob("test_*.py")) - {Path(__file__), ATTACKS / "test_not_promised.py"}):
        for name, function in vars(load(path)).items():
            if not name.startswith("test_") or not inspect.iscoroutinefunction(function):
                continue
            own_marks = getattr(function, "pytestmark", [])
            if any(mark.name == "claim" and mark.args[0] in not_claimed for mark in own_marks):
                continue
            marks = [mark for mark in own_marks if mark.name == "parametrize"]
            for values in itertools.product(*(mark.args[1] for mark in marks)):
                arguments: dict[str, Any] = {}
                for mark, value in zip(marks, values, strict=True):
                    names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
                    arguments |= zip(names, [value] if len(names) == 1 else value, strict=True)
                yield Case(f"{path.stem}::{name}{list(values)}", function, arguments)


@dataclass(frozen=True)
class Footprint:
    """Return what the slots of this process use on the machine."""

    processes: set[int]
    mounts: set[str]
    cgroups: set[str]
    files: set[str]
    descriptors: int

    @classmethod
    def now(cls) -> "Footprint":
        return cls(
            set(_descendants(os.getpid())),
            _mounts(),
            {folder for folder, *_ in os.walk("/sys/fs/cgroup") if Path(folder).match(f"agentloop-{os.getpid()}-*")},
            {path for top in ("/tmp", "/var/tmp", "/dev/shm", "/mnt") for path in _files_of_others(top)},
            len(os.listdir("/proc/self/fd")),
        )


def _mounts() -> set[str]:
    """Return the mount points, without those of a docker engine on this machine."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split()[4] for line in lines if "docker" not in line and "netns" not in line}


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for member in found:
        for path in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue
    return found[1:]


def _files_of_others(top: str) -> Iterator[str]:
    """Files of the users that slots are on the host."""
    found = subprocess.run(["find", top, "-uid", f"+{0x70000000 - 1}"], check=False, capture_output=True, text=True)
    yield from found.stdout.splitlines()


def memory_mb() -> float:
    gc.collect()
    return int(re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


async def looks(sandbox: Slots) -> list[str]:
    """Return what executions find that run in all slots at the same time."""
    results = await asyncio.gather(*(sandbox.run(Execution(code=LOOK, timeout=60.0)) for _ in range(SLOTS)))
    assert [result.stderr for result in results] == [""] * SLOTS
    return [result.stdout for result in results]


async def make() -> Slots:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_TOKEN", "hunter2_in_the_environment")
        sandbox = Slots(slots=SLOTS, disk_mb=64, preload=("numpy",))
        await sandbox.start()
    return sandbox


async def test_slots_are_clean_after_concurrent_attacks():
    before = Footprint.now()
    sandbox = await make()
    new = await looks(sandbox)
    assert len(set(new)) == 1
    warm, memory = Footprint.now(), memory_mb()

    box = load(ATTACKS / "conftest.py").Box(sandbox)
    at_once = asyncio.Semaphore(8)
    failures: dict[str, BaseException] = {}

    async def attack(case: Case) -> None:
        async with at_once:
            try:
                await case.run(box)
            except Exception as error:
                failures[case.name] = error

    attacks = list(cases())
    assert len(attacks) > 140
    await asyncio.gather(*map(attack, attacks))
    assert not failures, failures

    assert await looks(sandbox) == new
    after = Footprint.now()
    assert len(after.processes) == len(warm.processes)
    assert len(after.cgroups) <= len(warm.cgroups)
    assert (after.mounts, after.files) == (warm.mounts, set())
    assert after.descriptors <= warm.descriptors + 4
    assert memory_mb() < memory + 64

    await sandbox.close()
    ended = Footprint.now()
    assert ended.processes <= before.processes  # one of another file may have ended meanwhile
    assert (ended.cgroups, ended.mounts) == (before.cgroups, before.mounts)
    assert ended.descriptors <= before.descriptors + 1


@pytest.fixture
async def one_slot() -> AsyncIterator[Slots]:
    sandbox = Slots(slots=1, preload=("numpy",))
    await sandbox.start()
    yield sandbox
    await sandbox.close()


async def test_forks_of_one_slot_have_different_random_numbers(one_slot):
    results = [(await one_slot.run(Execution(code=RANDOM))).stdout for _ in range(5)]
    for column in zip(*(result.split() for result in results), strict=False):
        assert len(set(column)) == len(results)


async def test_healthy_slot_keeps_its_process(one_slot):
    before = set(_descendants(os.getpid()))
    for code in ("print(1)", "1 / 0", "import os; os.kill(-1, 9)", "while True: pass"):
        await one_slot.run(Execution(code=code, timeout=0.5))
    await one_slot.run(Execution(code="print(1)"))
    assert set(_descendants(os.getpid())) == before


async def test_waiting_does_not_count_toward_the_timeout():
    sandbox = Slots(slots=4)
    work = Execution(code="import time; time.sleep(0.5); print('done')", timeout=3.0)
    results = await asyncio.gather(*(sandbox.run(work) for _ in range(40)))
    await sandbox.close()
    assert {result.stdout for result in results} == {"done\n"}
    assert max(result.queue_seconds for result in results) > 3.0
    assert max(result.seconds for result in results) < 3.0
