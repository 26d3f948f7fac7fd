"""Create the rollout workers of a run: one engine in this process, or Ray actors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentloop.config.resolved import ResolvedConfig, context_length
from agentloop.engines import ENGINES
from agentloop.engines.replay import TurnRecord
from agentloop.engines.restarting import RestartingEngine
from agentloop.engines.stop_strings import StopFinder
from agentloop.episodes.setup import RolloutSetup, make_engine
from agentloop.process.restart_budget import RestartBudget
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.protocol import Workers
from agentloop.trainer.workers.ray.replica import Parts

if TYPE_CHECKING:
    from agentloop.engines.base import Engine


def make_workers(config: ResolvedConfig, episodes: RolloutSetup, folder: Path | None = None) -> Workers:
    """Create the workers of a run without starting them. Raises `UserError`.

    A worker in this process uses `episodes`; actors load their own. `agentloop workers` writes the number of workers to
    the `folder` of the run.
    """
    if config.workers.kind == "local":
        return LocalWorkers(episodes, local_engine(config))
    from agentloop.trainer.workers.ray.pool import RayWorkers
    from agentloop.trainer.workers.worker_count import FILE, WorkerCount

    assert config.workers.gpus is not None, "the resolved config has the GPUs of a worker"
    return RayWorkers(
        partial(make_replica, config),
        config.workers,
        gpus=config.workers.gpus,
        learner_gpus=config.learner_gpus_per_node,
        learner_nodes=config.learner.nodes or 1,
        learner_in_process=config.learner.in_process,
        most=config.engine.max_concurrency,
        longest=config.max_tokens(context_length(config.model_folder)),
        stall_seconds=_stall_seconds(config),
        shelf_on_host=config.placement.sleeps,
        wanted=WorkerCount(folder / FILE, config.workers.count) if folder else None,
    )


def make_replica(config: ResolvedConfig) -> Parts:
    """Create the parts of an actor."""
    turns = TurnRecord()
    engine = restarting_engine(config, turns)
    return Parts(LocalWorkers(RolloutSetup.load(config.given, config.model_folder), engine), turns)


def local_engine(config: ResolvedConfig) -> Engine:
    """Create the engine of a run. Only engines with their own processes can die independently and need restarts."""
    on_gpus = ENGINES.get(config.engine.name).runs_on_gpus
    return restarting_engine(config) if on_gpus else make_engine(config)


def restarting_engine(config: ResolvedConfig, turns: TurnRecord | None = None) -> RestartingEngine:
    """Create an engine that restarts, and replays the turns in `turns`."""
    can_hang = ENGINES.get(config.engine.name).runs_on_gpus
    return RestartingEngine(
        partial(make_engine, config),
        budget=RestartBudget(config.workers.max_restarts),
        stall_seconds=_stall_seconds(config) if can_hang else None,
        shelf_on_host=config.placement.sleeps,  # on the GPU it would take memory that the learner needs
        turns=turns,
        stops=StopFinder(config.model_folder),
    )


def _stall_seconds(config: ResolvedConfig) -> float:
    assert config.workers.stall_seconds is not None, "the resolved config has the time after which a worker is lost"
    return config.workers.stall_seconds


def has_gpus() -> bool:
    """Return whether this machine has GPUs, without initialising CUDA."""
    import torch

    return torch.cuda.device_count() > 0  # `is_available` may initialise CUDA
