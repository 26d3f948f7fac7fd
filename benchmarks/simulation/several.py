"""`simulate_rounds`: several engines play rounds; what it brings if turns go to idle ones in the tail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import Generation, SamplingParams
from agentloop.engines.testing.scripted import Script
from agentloop.rollout.setup import RolloutSetup
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.requests import make_requests
from benchmarks.simulation.engine import SimulatedEngine
from benchmarks.simulation.run import Machine, make_config, make_engine, on_virtual_clock
from benchmarks.simulation.workload import Workload, script

if TYPE_CHECKING:
    from agentloop.types.requests import RolloutRequest


@dataclass(slots=True, frozen=True)
class Rounds:
    """What they came to."""

    seconds: float
    moved: int
    """Turns that another engine than the worker's own sampled."""
    turns: int


@dataclass(slots=True, eq=False)
class _Engines:
    """All of them, and the orders that wait."""

    levels: bool
    all: list[_Engine] = field(default_factory=list)
    waiting: list[RolloutRequest] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class _Engine:
    """The engine of one worker. In the tail, when no order waits, its turns go to the one that samples fewest."""

    def __init__(self, engine: SimulatedEngine, engines: _Engines) -> None:
        self.engine = engine
        self.max_model_len = engine.max_model_len
        self.policy_version = 0
        self.running = 0
        self._engines = engines

    async def generate(self, prompt: Sequence[int], params: SamplingParams, **rest: Any) -> Generation:
        sampler = self
        if self._engines.levels and not self._engines.waiting:
            sampler = min(self._engines.all, key=lambda each: (each.running, each is not self))
        self._engines.counts["turns"] += 1
        self._engines.counts["moved"] += sampler is not self
        sampler.running += 1
        try:
            return await sampler.engine.generate(prompt, params, **rest)
        finally:
            sampler.running -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def simulate_rounds(
    workload: Workload,
    machine: Machine,
    *,
    model: Path,
    engines: int,
    rounds: int,
    groups: int,
    group_size: int,
    levels: bool,
) -> Rounds:
    """Play `rounds` rounds of so many groups on several machines, each round when the one before has ended. `levels`:
    turns move, at no cost. `model` is a folder with a tokenizer."""
    config = make_config(workload, machine, model, rounds, groups, group_size, {})
    episodes = RolloutSetup.load(config, model)

    async def play() -> Rounds:
        known = _Engines(levels)
        say = _counting(script(workload, episodes.renderer))
        known.all += [_Engine(make_engine(machine, say), known) for _ in range(engines)]
        workers = [LocalWorkers(episodes, engine) for engine in known.all]
        for worker in workers:
            await worker.start()
        rows = range(rounds * groups)
        for number in range(rounds):
            orders = make_requests(
                f"{number}", rows[number * groups : (number + 1) * groups], n=group_size, seed=number
            )
            await _play_round(workers, known, orders)
        for worker in workers:
            await worker.close()
        return Rounds(asyncio.get_running_loop().time(), known.counts["moved"], known.counts["turns"])

    return on_virtual_clock(play())


async def _play_round(workers: Sequence[LocalWorkers], known: _Engines, orders: Sequence[RolloutRequest]) -> None:
    """As `RayWorkers` gives them out: a group whole, to the worker with most room."""
    known.waiting += orders
    room = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        while known.waiting:
            worker = max(workers, key=lambda each: each.room())
            if worker.room() < known.waiting[0].n:
                room.clear()
                await room.wait()
                continue
            tasks.create_task(worker.play(known.waiting.pop(0), lambda _: room.set()))
            await asyncio.sleep(0)  # it has its episodes now


def _counting(say: Script) -> Script:
    """The script, where an engine has not seen all turns of a trajectory."""
    turns: Counter[str] = Counter()

    def counted(trajectory_id: str, turn: int, prompt: Sequence[int], params: SamplingParams) -> Sequence[int]:
        turns[trajectory_id] += 1
        return say(trajectory_id, turns[trajectory_id] - 1, prompt, params)

    return counted
