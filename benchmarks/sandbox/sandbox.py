"""Measure speed and memory of the sandbox over HTTP and in process, for each level, beside a bare process start.

python -m benchmarks.sandbox.sandbox [--quick] [--check]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from agentloop import sandboxes
from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes import Execution, Sandbox
from benchmarks import results_file
from benchmarks.sandbox import daemon
from benchmarks.sandbox.http_load import measure

PLAIN = "print(1)"
NUMPY = "import numpy as np; print(int((np.ones((20, 20)) @ np.ones((20, 20))).sum()))"
CELLS = ["x = 0", *(f"x += {index}; print(x)" for index in range(18)), "x"]
LEVELS = {"none": 1.0, "slots": 1.0, "bubblewrap": 0.2, "landlock": 0.2, "docker": 0.02}
"""Number of executions of each level, relative to the fastest."""
ROUNDS = 3
LEVEL_SECONDS = 120.0

# (key of the result, target, whether more is better), for two cores.
TARGETS = [
    ("http.plain_8_clients.per_second", 500, True),
    ("http.plain_1_client.median_ms", 4, False),
    ("http.numpy_8_clients.per_second", 350, True),
    ("http.session_cells.median_ms", 1, False),
    ("memory.daemon_and_8_slots_with_numpy_mb", 400, False),
]


def middle(rounds: list[dict[str, float]], key: str) -> dict[str, Any]:
    """Return the median round and the values of all rounds."""
    chosen = sorted(rounds, key=lambda found: found[key])[len(rounds) // 2]
    return {**chosen, "all_rounds": [found[key] for found in rounds]}


def floor(count: int) -> dict[str, float]:
    """Measure starts of processes that do nothing, one after the other."""
    runs = []
    for _ in range(count):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        runs.append(time.perf_counter() - start)
    return {"median_ms": round(1000 * statistics.median(runs), 3), "per_second": round(count / sum(runs), 1)}


def over_http(count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure requests to a daemon with the default level.

    Throughput is with two slots per core, which is fastest for code that computes, and with the default number, which
    leaves room for code that waits or hangs. Memory is with 8 slots.
    """
    two_a_core = ("--slots", str(2 * (os.cpu_count() or 1)))
    with daemon.serving(*two_a_core) as (_, port):
        measure("run", port, code=PLAIN, clients=8, count=100)
        bare = [measure("run", port, code=PLAIN, clients=8, count=count) for _ in range(ROUNDS)]
        single = [measure("run", port, code=PLAIN, clients=1, count=count // 3) for _ in range(ROUNDS)]
    with daemon.serving() as (_, port):
        measure("run", port, code=PLAIN, clients=8, count=100)
        default = [measure("run", port, code=PLAIN, clients=8, count=count) for _ in range(ROUNDS)]
        cells = [measure("sessions", port, count=max(5, count // 20), cells=CELLS)]
    with daemon.serving("--preload", "numpy", *two_a_core) as (_, port):
        measure("run", port, code=NUMPY, clients=8, count=100)
        numpy = [measure("run", port, code=NUMPY, clients=8, count=count) for _ in range(ROUNDS)]
    with daemon.serving("--preload", "numpy", "--slots", "8") as (pid, port):
        measure("run", port, code=NUMPY, clients=16, count=200)
        memory = [(member, daemon.pss_mb(member)) for member in daemon.family(pid)]
    http = {
        "plain_8_clients": middle(bare, "per_second"),
        "plain_8_clients_default_slots": middle(default, "per_second"),
        "plain_1_client": middle(single, "median_ms"),
        "numpy_8_clients": middle(numpy, "per_second"),
        "session_cells": middle(cells, "median_ms"),
    }
    total = sum(size for _, size in memory)
    sizes = {"daemon_and_8_slots_with_numpy_mb": round(total, 1), "daemon_mb": round(memory[0][1], 1)}
    return http, {**sizes, "processes": len(memory)}


async def in_process(sandbox: Sandbox, count: int) -> dict[str, float]:
    """Measure executions without HTTP: one after the other, and 8 at once."""
    execution = Execution(code=PLAIN)
    await asyncio.gather(*(sandbox.run(execution) for _ in range(8)))
    runs = []
    for _ in range(count):
        start = time.perf_counter()
        result = await sandbox.run(execution)
        runs.append(time.perf_counter() - start)
        assert result.stdout == "1\n", result

    async def client() -> None:
        for _ in range(count // 4):
            assert (await sandbox.run(execution)).stdout == "1\n"

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(8)))
    rate = 8 * (count // 4) / (time.perf_counter() - start)
    return {"median_ms": round(1000 * statistics.median(runs), 3), "per_second_8_at_once": round(rate, 1)}


async def level(name: str, count: int) -> dict[str, Any]:
    try:
        sandbox = sandboxes.create(name)
        await sandbox.start()
    except UserError as error:
        return {"not_measured": str(error)}
    try:
        async with asyncio.timeout(LEVEL_SECONDS):
            return await in_process(sandbox, max(4, round(count * LEVELS[name])))
    except (TimeoutError, SandboxError) as error:
        return {"not_measured": str(error) or f"it took more than {LEVEL_SECONDS:g} s"}
    finally:
        await sandbox.close()


def check(result: dict[str, Any]) -> list[str]:
    """Return the targets that are missed."""
    missed = []
    for path, target, more_is_better in TARGETS:
        value: Any = result
        for name in path.split("."):
            value = value[name]
        if value < target if more_is_better else value > target:
            missed.append(f"{path} is {value}, the target is {'at least' if more_is_better else 'at most'} {target}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests; writes no file")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    count = 200 if options.quick else 2000
    result: dict[str, Any] = {"floor_start_of_python": floor(count // 20)}
    result["http"], result["memory"] = over_http(count)
    result["in_process"] = {name: asyncio.run(level(name, count // 5)) for name in LEVELS}
    for name, part in result.items():
        print(name)
        for key, value in part.items():
            print(f"    {key}: {value}")
    if not options.quick:
        print(results_file.write("sandbox", result))
    if options.check and (missed := check(result)):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
