"""Measure processor time and page faults of an execution in a slot, beside a bare fork of a warm interpreter.

On a busy machine they are more reliable than rates. A bare fork server has no isolation, limits or HTTP: it forks, runs
the code and reads two pipes. `daemon` is the processor time of the daemon for a request over HTTP, without its slots.

python -m benchmarks.sandbox.sandbox_cost [--executions 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

from agentloop.sandboxes.interface.sandbox import Execution
from agentloop.sandboxes.levels.slots import Slots
from benchmarks import results_file
from benchmarks.sandbox import daemon, http_load

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


BARE = """
import gc, json, os, resource, sys
gc.collect(); gc.freeze(); gc.disable()
count = int(sys.argv[1])
def used():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return [each.ru_utime + each.ru_stime for each in both], [each.ru_minflt for each in both]
before = used()
for _ in range(count):
    (out, out_writer), (errors, errors_writer) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(out_writer, 1); os.dup2(errors_writer, 2)
        exec(compile("print(1)", "main.py", "exec"), {"__name__": "__main__"})
        sys.stdout.flush(); os._exit(0)
    os.close(out_writer); os.close(errors_writer)
    assert os.read(out, 100) == b"1\\n" and os.read(errors, 100) == b""
    os.close(out); os.close(errors); os.waitpid(pid, 0)
after = used()
seconds, faults = ([(b - a) / count for a, b in zip(*each)] for each in zip(before, after))
print(json.dumps({"cpu_ms": 1000 * sum(seconds), "page_faults_of_server": faults[0], "page_faults_of_fork": faults[1]}))
"""
"""A fork server that only forks, for `print(1)`."""


def measure_bare(count: int) -> dict[str, float]:
    """Return the cost of an execution of `print(1)` in a fork of a bare interpreter."""
    command = [sys.executable, "-I", "-S", "-c", BARE, str(count)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {name: round(value, 3) for name, value in found.items()}


def measure_daemon(count: int) -> dict[str, float]:
    """Return the processor time of the daemon for each of `count` requests of 8 clients, in milliseconds."""
    with daemon.serving("--slots", "4") as (pid, port):
        http_load.measure("run", port, code="print(1)", clients=8, count=100)
        before = _cpu_ms(pid)
        http_load.measure("run", port, code="print(1)", clients=8, count=count)
        return {"cpu_ms_of_a_request": round((_cpu_ms(pid) - before) / count, 3)}


def _cpu_ms(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return 1000 * sum(map(int, words[11:13])) / _TICK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=1000)
    count = parser.parse_args().executions
    bare = [measure_bare(count)]
    result = {name: asyncio.run(measure(*program, count)) for name, program in PROGRAMS.items()}
    result["daemon"] = measure_daemon(count)
    bare.append(measure_bare(count))  # before and after, because the load of the machine changes
    result["bare_fork_server"] = min(bare, key=lambda found: found["cpu_ms"])
    ours = result["plain"]["owner_cpu_ms"] + result["plain"]["slot_cpu_ms"]
    over_http = result["daemon"]["cpu_ms_of_a_request"] + result["plain"]["slot_cpu_ms"]
    bare_ms = result["bare_fork_server"]["cpu_ms"]
    result["rate_over_bare"] = {"in_process": round(bare_ms / ours, 2), "over_http": round(bare_ms / over_http, 2)}
    result["load_average_of_the_machine"] = round(os.getloadavg()[0], 1)
    for name, found in result.items():
        print(name, found)
    print(results_file.write("sandbox_cost", result))


if __name__ == "__main__":
    main()
