"""Measure the cost of a worker process: seconds per step for many concurrent episodes, compared with the same game in
our process.

    python -m benchmarks.rollout.env_workers [--episodes 500] [--steps 40]

The game answers at once, so only the communication is measured. `seconds_a_step` is the wall time over all steps
(throughput); `latency` is how long one episode waits for an answer while all others send requests, too; `lag` is the
time that the client blocks its event loop. Observations have 500 characters.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentloop.envs.workers.pool import WorkerPool
from agentloop.envs.workers.process import Program
from benchmarks import results_file

GAME = """
class Worker:
    def start(self, episode, arguments):
        return {"messages": "o" * 500}

    def step(self, episode, arguments):
        return {"messages": "o" * 500, "reward": 1.0}
"""


async def lags(found: list[float]) -> None:
    while True:
        started = time.perf_counter()
        await asyncio.sleep(0.001)
        found.append(time.perf_counter() - started - 0.001)


async def measure(pool: WorkerPool, episodes: int, steps: int) -> dict[str, float]:
    games = await asyncio.gather(*(pool.start({}, seconds=None) for _ in range(episodes)))
    latencies: list[float] = []
    blocked: list[float] = []
    message = {"message": {"role": "assistant", "content": "a" * 500}}

    async def play(game: Any) -> None:
        for _ in range(steps):
            started = time.perf_counter()
            await game.step(message)
            latencies.append(time.perf_counter() - started)

    watch = asyncio.create_task(lags(blocked))
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(play, games))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    watch.cancel()
    await asyncio.gather(*(game.close() for game in games))
    count = episodes * steps
    return {
        "steps": count,
        "seconds_a_step": wall / count,
        "client_cpu_seconds_a_step": cpu / count,
        "latency_median": statistics.median(latencies),
        "latency_p99": statistics.quantiles(latencies, n=100)[98],
        "lag_p99": statistics.quantiles(blocked, n=100)[98] if len(blocked) > 1 else 0.0,
    }


async def main(arguments: argparse.Namespace, file: Path) -> None:
    result: dict[str, Any] = {"episodes": arguments.episodes, "steps_each": arguments.steps}
    for processes in (1, 2):
        pool = WorkerPool(Program("benchmark", sys.executable, file), processes=processes)
        await measure(pool, arguments.episodes, 2)  # starts the processes
        result[f"{processes}_processes"] = await measure(pool, arguments.episodes, arguments.steps)
        result[f"{processes}_processes_one_episode"] = await measure(pool, 1, arguments.steps * 10)
        pool.close()
    names: dict[str, Any] = {}
    exec(GAME, names)  # the same game without a process
    game, started = names["Worker"](), time.perf_counter()
    for _ in range(arguments.episodes * arguments.steps):
        game.step("", {})
    result["in_our_process_seconds_a_step"] = (time.perf_counter() - started) / (arguments.episodes * arguments.steps)
    print(results_file.write("env_workers", result).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--steps", type=int, default=40)
    with TemporaryDirectory() as folder:
        game_file = Path(folder) / "game.py"
        game_file.write_text(GAME)
        asyncio.run(main(parser.parse_args(), game_file))
