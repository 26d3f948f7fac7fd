"""Measure boxes of all providers in one run: starts per second, commands, and the memory of many at once.

    scripts/with-docker python -m benchmarks.sandbox.boxes [--providers rootfs docker] [--starts 100] [--alive 64]

All boxes have the image builtin:busybox. `starts_per_second` counts start and stop, with four in flight. Docker's own
command line runs `docker run --rm IMAGE true` one after the other, as a user would. The providers alternate in every
round, so the load of the machine affects all alike; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentloop import boxes
from agentloop.boxes import BoxProvider, BoxSpec, Image
from agentloop.boxes.images import busybox
from benchmarks import results_file
from benchmarks.sandbox.daemon import family, pss_mb

_IN_FLIGHT = 4


async def starts_per_second(provider: BoxProvider, spec: BoxSpec, count: int) -> float:
    async def cycle(number: int) -> None:
        async with room:
            await (await provider.start(spec)).stop()

    room = asyncio.Semaphore(_IN_FLIGHT)
    begin = time.perf_counter()
    await asyncio.gather(*(cycle(number) for number in range(count)))
    return count / (time.perf_counter() - begin)


async def exec_milliseconds(provider: BoxProvider, spec: BoxSpec, count: int) -> list[float]:
    box = await provider.start(spec)
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        await box.exec(["true"])
        found.append(1000 * (time.perf_counter() - begin))
    await box.stop()
    return found


async def memory_of(provider: BoxProvider, spec: BoxSpec, count: int) -> dict[str, float]:
    """Return MiB that boxes take with a sleeping program in each: of all processes, and of the machine."""
    before, own = _available_mb(), _family_mb()
    alive = await asyncio.gather(*(provider.start(spec) for _ in range(count)))
    for box in alive:
        await box.exec("sleep 1000 > /dev/null 2>&1 &")
    found = {"processes_mb": _family_mb() - own, "machine_mb": before - _available_mb(), "boxes": float(count)}
    await asyncio.gather(*(box.stop() for box in alive))
    return found


def _family_mb() -> float:
    return sum(map(pss_mb, family(os.getpid())))


def _available_mb() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1024


def docker_run_per_second(image: str, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        subprocess.run(["docker", "run", "--rm", "--network", "none", image, "true"], check=True)
    return count / (time.perf_counter() - begin)


def docker_exec_milliseconds(image: str, count: int) -> float:
    name = subprocess.check_output(
        ["docker", "run", "--detach", "--rm", "--network", "none", image, "sleep", "1000"], text=True
    ).strip()
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        subprocess.run(["docker", "exec", name, "true"], check=True)
        found.append(1000 * (time.perf_counter() - begin))
    subprocess.run(["docker", "kill", name], check=True, capture_output=True)
    return statistics.median(found)


def cold_start_seconds(make: Callable[[], BoxProvider], spec: BoxSpec) -> float:
    """Return seconds from nothing to the first result: open the provider, start a box, run a command."""

    async def first() -> float:
        begin = time.perf_counter()
        provider = make()
        await provider.open()
        await (await provider.start(spec)).exec(["true"])
        seconds = time.perf_counter() - begin
        await provider.close()
        return seconds

    return asyncio.run(first())


async def _measure(name: str, spec: BoxSpec, starts: int, alive: int) -> dict[str, Any]:
    provider = boxes.create(name)
    await provider.open()
    await provider.prepare(spec.image)
    await (await provider.start(spec)).stop()
    is_rootfs = name == "rootfs"
    found = {
        "starts_per_second": await starts_per_second(provider, spec, starts if is_rootfs else max(8, starts // 10)),
        "exec_true_ms": statistics.median(await exec_milliseconds(provider, spec, 200 if is_rootfs else 20)),
    }
    if is_rootfs:
        found["alive"] = await memory_of(provider, spec, alive)
    await provider.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--providers", nargs="+", default=["rootfs", "docker"])
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--alive", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "busybox")
        tree.mkdir()
        busybox.fill(tree)
        spec = BoxSpec(image=Image(tree=tree), memory_mb=256, storage_mb=64)
        imported = subprocess.run(
            ["sh", "-c", f"tar -c -C {tree} . | docker import - localhost/agentloop-box-benchmark"], check=True
        )
        assert imported.returncode == 0
        image = "localhost/agentloop-box-benchmark"
        rounds: list[dict[str, Any]] = []
        for _ in range(arguments.rounds):
            found: dict[str, Any] = {
                name: asyncio.run(_measure(name, spec, arguments.starts, arguments.alive))
                for name in arguments.providers
            }
            found["docker command line"] = {
                "starts_per_second": docker_run_per_second(image, 8),
                "exec_true_ms": docker_exec_milliseconds(image, 20),
            }
            for name in arguments.providers:
                found[name]["cold_start_seconds"] = cold_start_seconds(lambda name=name: boxes.create(name), spec)
            rounds.append(found)
        subprocess.run(["docker", "rmi", image], check=True, capture_output=True)
    keys = ("starts_per_second", "exec_true_ms", "cold_start_seconds")
    medians = {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in keys if key in rounds[0][name]}
        for name in rounds[0]
    }
    ratios = {
        "starts: rootfs over docker run": medians["rootfs"]["starts_per_second"]
        / medians["docker command line"]["starts_per_second"],
        "exec: docker exec over rootfs": medians["docker command line"]["exec_true_ms"]
        / medians["rootfs"]["exec_true_ms"],
    }
    print(results_file.write("boxes", {"medians": medians, "ratios": ratios, "rounds": rounds}).read_text())


if __name__ == "__main__":
    main()
