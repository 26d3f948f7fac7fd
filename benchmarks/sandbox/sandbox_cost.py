"""Measure processor time and page faults of an execution in a slot. On a busy machine they say more than rates.

python -m benchmarks.sandbox.sandbox_cost [--executions 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import time
from typing import Any

from agentloop.sandboxes.interface.sandbox import Execution
from agentloop.sandboxes.levels.slots import Slots
from benchmarks import results_file
from benchmarks.sandbox import daemon

PROGRAMS = {
    "plain": ((), "print(1)"),
    "numpy": (("numpy",), "import numpy as np; print(int((np.ones((20, 20)) @ np.ones((20, 20))).sum()))"),
}
_WARM_UP = 50
_TICK = os.sysconf("SC_CLK_TCK")


def _slot_of(pid: int) -> int:
    """Return the only slot of the only sandbox of this process."""
    _, _template, slot = daemon.family(pid)
    return slot


def _used(slot: int) -> dict[str, float]:
    """Return the costs of this process, of a slot, and of processes that ended in it (man 5 proc, /proc/pid/stat)."""
    with open(f"/proc/{slot}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    minor, of_children = int(words[7]), int(words[8])
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "owner_cpu_ms": 1000 * (own.ru_utime + own.ru_stime),
        "slot_cpu_ms": 1000 * sum(map(int, words[11:15])) / _TICK,
        "page_faults_of_slot": minor,
        "page_faults_of_execution": of_children,
    }


async def measure(preload: tuple[str, ...], code: str, count: int) -> dict[str, Any]:
    sandbox = Slots(slots=1, preload=preload)
    await sandbox.start()
    try:
        execution = Execution(code=code)
        for _ in range(_WARM_UP):
            assert (await sandbox.run(execution)).ok
        slot = _slot_of(os.getpid())
        before, start = _used(slot), time.perf_counter()
        for _ in range(count):
            await sandbox.run(execution)
        seconds, after = time.perf_counter() - start, _used(slot)
        each = {name: round((after[name] - before[name]) / count, 3) for name in before}
        return {"executions": count, "mean_ms": round(1000 * seconds / count, 3), **each}
    finally:
        await sandbox.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=1000)
    count = parser.parse_args().executions
    result = {name: asyncio.run(measure(*program, count)) for name, program in PROGRAMS.items()}
    result["load_average_of_the_machine"] = round(os.getloadavg()[0], 1)
    for name, found in result.items():
        print(name, found)
    print(results_file.write("sandbox_cost", result))


if __name__ == "__main__":
    main()
