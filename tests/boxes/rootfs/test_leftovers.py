"""Nothing of a box remains on the machine, no matter which process is killed and when."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.boxes.processes import running

pytestmark = pytest.mark.slow

OWNER = """
import asyncio, sys
from pathlib import Path
from agentloop import boxes

async def main():
    provider = boxes.create("rootfs")
    await provider.open()
    print("open", flush=True)
    spec = boxes.BoxSpec(image=boxes.Image(tree=Path(sys.argv[1])), storage_mb=16)
    while True:
        started = await asyncio.gather(*(provider.start(spec) for _ in range(3)))
        for box in started:
            await box.exec("sleep 48151 & setsid sleep 48152 & true")
        await asyncio.gather(*(box.stop() for box in started[:2]))

asyncio.run(main())
"""


def _cgroups_of(pid: int) -> list[str]:
    return [folder for folder, *_ in os.walk("/sys/fs/cgroup") if f"/agentloop-{pid}-" in folder]


def _mounts(tree: Path) -> set[str]:
    """Return the mounts of this machine but those of engines and of other tests, which start and end meanwhile."""
    lines = Path("/proc/mounts").read_text().splitlines()
    engines = "docker|containers|podman|buildah|netns"
    return {line for line in lines if not re.search(engines, line) and ("/pytest-of-" not in line or str(tree) in line)}


def _children(pid: int) -> list[int]:
    lists = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(word) for text in lists for word in text.split()]


@contextmanager
def _owner(tree: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a process that starts and stops boxes, and the pid of their keeper."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, tree], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout.readline() == "open\n"
        (keeper,) = _children(owner.pid)
        yield owner, keeper
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def _wait_until(is_so) -> bool:
    end = time.monotonic() + 20
    while not is_so() and time.monotonic() < end:
        time.sleep(0.02)
    return is_so()


@pytest.mark.parametrize("victims", ["owner", "owner and keeper"])
def test_nothing_is_left_of_boxes_whose_owner_was_killed(tree, victims):
    before = _mounts(tree)
    moments = random.Random(19)
    for _ in range(6):
        with _owner(tree) as (owner, keeper):
            time.sleep(moments.uniform(0.0, 0.6))
            owner.kill()
            if victims != "owner":
                os.kill(keeper, signal.SIGKILL)
        assert _wait_until(lambda: running("sleep 4815") == [])
        assert _wait_until(lambda keeper=keeper: not Path(f"/proc/{keeper}").exists())
        if victims == "owner":
            assert _cgroups_of(owner.pid) == []
    assert _mounts(tree) == before


def test_cgroups_of_a_killed_keeper_go_when_the_next_owner_starts(tree):
    with _owner(tree) as (owner, keeper):
        time.sleep(0.3)
        owner.kill()
        os.kill(keeper, signal.SIGKILL)
    assert _wait_until(lambda: running("sleep 4815") == [])
    with _owner(tree):
        assert _cgroups_of(owner.pid) == []
