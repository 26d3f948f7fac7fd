"""Simulate a whole run in seconds, to compare policies without a cluster (`simulate`)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agentloop.config.run import RunConfig
from agentloop.engines.testing.scripted import Script
from agentloop.episodes.setup import RolloutSetup
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.run import Run
from agentloop.trainer.schedule.observers import Observer, StageTimer
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.requests import make_requests, play_all
from agentloop.types.trajectory import Trajectory
from benchmarks.simulation.engine import SimulatedEngine
from benchmarks.simulation.learner import SimulatedLearner
from benchmarks.simulation.virtual_clock import VirtualClockLoop
from benchmarks.simulation.workload import Workload, script

T = TypeVar("T")
_HERE = "benchmarks.simulation.workload"


@dataclass(slots=True, frozen=True, kw_only=True)
class Machine:
    """Speeds of engine and learner.

    With the defaults the median turn of a workload takes 5.7 s at full concurrency, and training takes the time in
    which a full engine samples a third of a step.
    """

    concurrency: int = 256
    """Maximum episodes in flight."""
    step_seconds: float = 0.05
    """Seconds of a decoding step to read the weights."""
    request_seconds: float = 0.00035
    """Seconds of a decoding step for each request in it."""
    update_seconds: float = 0.5
    """Seconds of the pause for new weights."""
    learner_step_seconds: float = 5.0
    learner_token_seconds: float = 0.0002


@dataclass(slots=True)
class Outcome(Observer):
    """Results of a simulated run."""

    seconds: float = 0.0
    """Seconds from the first admission to the last training step."""
    tokens: int = 0
    """Sampled."""
    busy: float = 0.0
    """Sampled tokens divided by those of a full engine in the same time."""
    metrics: list[dict[str, float]] = field(default_factory=list)
    """Metrics of each step."""
    episodes: list[tuple[float, float, int]] = field(default_factory=list)
    """(start, end, training step in which it ended) of each episode."""
    engine: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, running requests) whenever that changed."""
    learner: list[tuple[float, float, int]] = field(default_factory=list)
    """(start, end, episodes) of each training step."""

    def on_trajectory(self, step: int, trajectory: Trajectory) -> None:
        now = asyncio.get_running_loop().time()
        self.episodes.append((now - trajectory.metrics["seconds"], now, step))


def simulate(
    workload: Workload, machine: Machine, *, model: Path, steps: int, groups_per_step: int, group_size: int, **run: Any
) -> Outcome:
    """Play and train `steps` steps on a virtual clock.

    `model` is a folder with a tokenizer. `run` has further sections of the `RunConfig`, such as `staleness`. Raises
    `UserError` if a run would.
    """
    config = make_config(workload, machine, model, steps, groups_per_step, group_size, run)
    return on_virtual_clock(_simulate(config, workload, machine, model))


def simulate_without_barrier(
    workload: Workload, machine: Machine, *, model: Path, steps: int, groups_per_step: int, group_size: int
) -> Outcome:
    """Play the same episodes without barriers: a limit for every policy."""
    config = make_config(workload, machine, model, steps, groups_per_step, group_size, {})
    return on_virtual_clock(_play(config, workload, machine, model))


def on_virtual_clock(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine on a virtual clock and return its result."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)


async def _simulate(config: RunConfig, workload: Workload, machine: Machine, model: Path) -> Outcome:
    episodes = RolloutSetup.load(config, model)
    engine = make_engine(machine, script(workload, episodes.renderer))
    learner = SimulatedLearner(step_seconds=machine.learner_step_seconds, token_seconds=machine.learner_token_seconds)
    workers = LocalWorkers(episodes, engine)
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        run_folder = RunFolder(Path(folder) / "run")
        run_folder.make()
        await workers.start()
        run = Run(episodes, workers, learner, run_folder, timer=StageTimer(outcome))
        try:
            await run.to_the_end()
        finally:
            await run.close()
            await workers.close()
        run.queue.check()
        outcome.metrics = run_folder.read_metrics()
    outcome.learner = learner.history
    return _measured(outcome, engine, learner.history[-1][1])


async def _play(config: RunConfig, workload: Workload, machine: Machine, model: Path) -> Outcome:
    episodes = RolloutSetup.load(config, model)
    engine = make_engine(machine, script(workload, episodes.renderer))
    workers = LocalWorkers(episodes, engine)
    outcome = Outcome()
    await workers.start()
    orders = make_requests("1", range(len(episodes.train)), n=config.algorithm.group_size, seed=0)
    await play_all(workers, orders, lambda trajectory: outcome.on_trajectory(1, trajectory))
    await workers.close()
    return _measured(outcome, engine, asyncio.get_running_loop().time())


def _measured(outcome: Outcome, engine: SimulatedEngine, seconds: float) -> Outcome:
    outcome.seconds = seconds
    outcome.tokens = engine.num_tokens
    outcome.busy = engine.num_tokens / (seconds * engine.tokens_per_second)
    outcome.engine = engine.history
    return outcome


def make_engine(machine: Machine, script: Script) -> SimulatedEngine:
    """Return an engine with the speed of the machine."""
    return SimulatedEngine(
        script,
        step_seconds=machine.step_seconds,
        request_seconds=machine.request_seconds,
        max_running=machine.concurrency,
        update_seconds=machine.update_seconds,
    )


def make_config(
    workload: Workload,
    machine: Machine,
    model: Path,
    steps: int,
    groups_per_step: int,
    group_size: int,
    run: dict[str, Any],
) -> RunConfig:
    """Return the config of a run that plays the workload; `run` has further sections."""
    known = {
        "model": str(model),
        "data": {"train": f"{_HERE}:tasks", "train_options": {"num": steps * groups_per_step}, "shuffle": False},
        "env": {"tools": [{"name": f"{_HERE}:Wait", "options": asdict(workload)}], "reward": f"{_HERE}:reward"},
        "limits": {"max_turns": 1000, "max_turn_tokens": 1 << 20, "max_tokens": 1 << 20, "max_seconds": 1e9},
        "engine": {"name": "scripted", "max_concurrency": machine.concurrency},
        "algorithm": {"groups_per_step": groups_per_step, "group_size": group_size},
        "learner": {},
        "run": {"steps": steps, "save_every": steps, "save_trajectories": 0, "loggers": []},
    }
    return RunConfig(**{**known, **run})
