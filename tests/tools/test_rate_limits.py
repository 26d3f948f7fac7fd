"""Limits of a tool over several processes: never exceeded, never lost, and waiting costs the tool nothing."""

import asyncio
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentloop import tool
from agentloop.errors import FailureKind, UserError
from agentloop.tools import registry
from agentloop.tools.rate_limits import SharedLimit
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall

pytestmark = pytest.mark.slow

WORKER = """
import asyncio, sys, time
from pathlib import Path
from agentloop.tools.rate_limits import SharedLimit

async def main(folder, limits, calls, seconds):
    limit = SharedLimit("t", folder=Path(folder), **limits)
    async def call():
        async with limit.admitted():
            begin = time.monotonic()
            await asyncio.sleep(seconds)
            print(begin, time.monotonic(), flush=True)
    await asyncio.gather(*(call() for _ in range(calls)))

asyncio.run(main(sys.argv[1], eval(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
"""


def worker(folder: Path, limits: dict, calls: int, seconds: float) -> subprocess.Popen:
    command = [sys.executable, "-c", WORKER, str(folder), repr(limits), str(calls), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def spans(workers) -> list[tuple[float, float]]:
    lines = [line for each in workers for line in each.communicate(timeout=60)[0].splitlines()]
    assert all(each.returncode == 0 for each in workers)
    return sorted(tuple(map(float, line.split())) for line in lines)


def most_at_once(spans) -> int:
    events = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    running = [0]
    for _, change in events:
        running.append(running[-1] + change)
    return max(running)


def test_concurrency_limit_holds_across_processes_and_is_fully_used(tmp_path):
    found = spans([worker(tmp_path, {"max_concurrency": 3}, 8, 0.1) for _ in range(3)])
    assert len(found) == 24
    assert most_at_once(found) == 3


def test_rate_limit_holds_across_processes(tmp_path):
    found = spans([worker(tmp_path, {"calls_per_second": 20}, 10, 0.0) for _ in range(3)])
    begins = [begin for begin, _ in found]
    assert len(begins) == 30
    # Each may be late, by what the machine has to do, but 30 calls at 20 a second cannot take less than 29 intervals.
    assert begins[-1] - begins[0] >= 29 / 20 - 0.1
    assert begins[-1] - begins[0] < 10


def test_slots_of_a_killed_process_are_released(tmp_path):
    holder = worker(tmp_path, {"max_concurrency": 2}, 2, 60)
    deadline = time.monotonic() + 30
    limit = SharedLimit("t", folder=tmp_path, max_concurrency=2)

    async def is_full() -> bool:
        try:
            async with asyncio.timeout(0.1), limit.admitted():
                return False
        except TimeoutError:
            return True

    while not asyncio.run(is_full()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()

    async def enter():
        async with asyncio.timeout(10), limit.admitted(), limit.admitted():
            return True

    assert asyncio.run(enter())


async def test_cancelled_waiter_consumes_nothing(tmp_path):
    limit = SharedLimit("t", folder=tmp_path, max_concurrency=1)

    async def hold():
        async with limit.admitted():
            await asyncio.sleep(60)

    tasks = [asyncio.create_task(hold()) for _ in range(5)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(5), limit.admitted():
        pass


def limited(tmp_path, timeout, seconds, **limits):
    @tool(timeout=timeout)
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "done"

    wait.limit = SharedLimit("wait", folder=tmp_path, **limits)
    return Toolset([wait]).sessions("t", {}, 0)


async def test_waiting_does_not_count_toward_the_tool_timeout(tmp_path):
    sessions = limited(tmp_path, timeout=0.6, seconds=0.25, max_concurrency=1)
    calls = [sessions.call(ToolCall("wait", {}, str(i)), time.monotonic() + 30) for i in range(5)]
    results = await asyncio.gather(*calls)
    assert [result.content for result in results] == ["done"] * 5
    assert max(result.metrics["seconds_waiting"] for result in results) > 0.6


async def test_waiting_counts_toward_the_episode_deadline(tmp_path):
    sessions = limited(tmp_path, timeout=60, seconds=5, max_concurrency=1)
    held = asyncio.create_task(sessions.call(ToolCall("wait", {}, "a"), time.monotonic() + 30))
    await asyncio.sleep(0.02)
    result = await sessions.call(ToolCall("wait", {}, "b"), time.monotonic() + 0.2)
    assert result.failure is FailureKind.TOOL
    assert re.search(r"waited 0\.\d+ s for a free slot", result.content)
    held.cancel()


def test_any_configured_tool_may_have_limits(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (found,) = registry.load_all(f"{__file__}:plain", max_concurrency=2, calls_per_second=5.0)
    assert found.limit is not None
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert plain.limit is None
    (own,) = folder.iterdir()
    assert own.name == "plain"


@tool
def plain() -> str:
    """Nothing."""
    return ""


@pytest.mark.parametrize(
    "limits",
    [
        {"max_concurrency": 0},
        {"max_concurrency": 1.5},
        {"max_concurrency": True},
        {"calls_per_second": 0},
        {"calls_per_second": "abc"},
        {"calls_per_second": [1]},
        {"calls_per_second": True},
        {"calls_per_second": math.nan},
    ],
)
def test_invalid_limits_raise(tmp_path, limits):
    with pytest.raises(UserError, match=next(iter(limits))):
        SharedLimit("t", folder=tmp_path, **limits)
