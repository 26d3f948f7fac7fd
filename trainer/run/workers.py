"""Make the rollout workers of a run from its config: one engine in this process, or actors of Ray."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.config.run import RunConfig
from agentloop.engines.replay import TurnRecord
from agentloop.engines.restarting import RestartingEngine
from agentloop.process.restart_budget import RestartBudget
from agentloop.rollout.setup import RolloutSetup, make_engine
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.protocol import Workers
from agentloop.trainer.workers.ray.replica import Parts

if TYPE_CHECKING:
    from agentloop.engines.base import Engine

_GPU_ENGINES = ("vllm", "sglang")
_GRACE_SECONDS = 60.0
_USED = 0.9
"""Share of a worker's part of a GPU that its engine takes: the driver needs some memory."""


def make_workers(config: RunConfig, model: Path, episodes: RolloutSetup, folder: Path | None = None) -> Workers:
    """Make the workers of the config for the model in a folder, not started. Raises `UserError`.

    A worker in this process uses `episodes`; actors load their own. `agentloop workers` writes the number of workers
    into the `folder` of the run.
    """
    if config.workers.kind == "local":
        return LocalWorkers(episodes, local_engine(config, model))
    from agentloop.trainer.workers.ray.pool import RayWorkers
    from agentloop.trainer.workers.worker_count import FILE, WorkerCount

    return RayWorkers(
        partial(make_replica, config, model),
        config.workers,
        gpus=gpus_of_worker(config),
        learner_gpus=_learner_gpus(config),
        learner_nodes=config.learner.nodes or 1,
        most=config.engine.max_concurrency,
        longest=config.limits.max_tokens,
        stall_seconds=stall_seconds(config),
        shelf_on_host=config.placement.sleeps,
        wanted=WorkerCount(folder / FILE) if folder else None,
    )


def make_replica(config: RunConfig, model: Path) -> Parts:
    """Make the parts of an actor."""
    config = on_its_part(config)
    turns = TurnRecord()
    engine = restarting_engine(config, model, turns)
    return Parts(LocalWorkers(RolloutSetup.load(config, model), engine), turns)


def local_engine(config: RunConfig, model: Path) -> Engine:
    """Make the engine of the config. Only one with processes of its own can die without this process."""
    if config.engine.name in _GPU_ENGINES:
        return restarting_engine(config, model)
    return make_engine(_with_run_options(config), model)


def restarting_engine(config: RunConfig, model: Path, turns: TurnRecord | None = None) -> RestartingEngine:
    """Make the engine of the config such that it restarts, and replays the turns in `turns`."""
    can_hang = config.engine.name in _GPU_ENGINES
    return RestartingEngine(
        partial(make_engine, _with_run_options(config), model),
        budget=RestartBudget(config.workers.max_restarts),
        stall_seconds=stall_seconds(config) if can_hang else None,
        shelf_on_host=config.placement.sleeps,  # on the GPU it would take memory while the learner trains
        turns=turns,
    )


def _with_run_options(config: RunConfig) -> RunConfig:
    """Add engine options that follow from other sections."""
    if config.engine.name == "hf":  # on GPUs its default is bfloat16, which the learner may not compute in
        return _with_options(config, {"dtype": config.learner.compute_dtype})
    if config.engine.name in _GPU_ENGINES and config.placement.sleeps:
        return _with_options(config, {"sleeps": True})
    return config


def stall_seconds(config: RunConfig) -> float:
    """Return the time without progress after which a worker is lost."""
    if config.workers.stall_seconds is not None:
        return config.workers.stall_seconds
    return config.limits.max_seconds + _GRACE_SECONDS


def gpus_of_worker(config: RunConfig) -> float:
    """Return the GPUs that Ray reserves for each worker."""
    if config.workers.gpus is not None:
        return config.workers.gpus
    if config.engine.name not in _GPU_ENGINES or not _has_gpus():
        return 0
    options: dict[str, Any] = config.engine.options
    return int(options.get("tensor_parallel_size", 1)) * int(options.get("pipeline_parallel_size", 1))


def on_its_part(config: RunConfig) -> RunConfig:
    """Limit vLLM to its part of a GPU."""
    gpus = config.workers.gpus
    if gpus is None or not 0 < gpus < 1 or config.engine.name != "vllm":
        return config
    return _with_options(config, {"gpu_memory_utilization": round(_USED * gpus, 3), "shares_gpu": True})


def _with_options(config: RunConfig, options: dict[str, Any]) -> RunConfig:
    """Set options of the engine unless the config sets them."""
    engine = config.engine.model_copy(update={"options": options | config.engine.options})
    return config.model_copy(update={"engine": engine})


def _learner_gpus(config: RunConfig) -> int:
    """Return the GPUs of each learner node that no worker may use."""
    wanted = config.placement
    shares = wanted.layout in ("colocated", "mixed") or config.learner.device == "cpu"
    return 0 if wanted.n_gpus is None or shares else config.learner.ranks // (config.learner.nodes or 1)


def _has_gpus() -> bool:
    import torch

    return torch.cuda.device_count() > 0  # `is_available` would fix which devices this process sees
