"""From the config of a run to its rollout workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.config.run import RunConfig
from agentloop.engines.handing_over import HandingOverEngine, Helpers
from agentloop.engines.replay import RecallingEngine
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
"""Of a worker's part of a GPU, by its engine: some of the memory is nobody's."""


def make_workers(config: RunConfig, model: Path, episodes: RolloutSetup, folder: Path | None = None) -> Workers:
    """The workers of the config for the model in a folder, not started. `episodes` are used where a worker is in this
    process; actors load their own. In the `folder` of the run `agentloop workers` says how many there are to be. Raises
    `UserError`."""
    if config.workers.kind == "local":
        return LocalWorkers(episodes, restarting_engine(config, model, copy_weights=True))
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
    """The worker of an actor, and its engines."""
    config = on_its_part(config)
    helpers = Helpers()
    # Weights are in the object store, which nobody writes to.
    engine = restarting_engine(config, model, copy_weights=False, helpers=helpers)
    handing_over = HandingOverEngine(engine, helpers)
    recalling = RecallingEngine(handing_over)
    return Parts(LocalWorkers(RolloutSetup.load(config, model), recalling), recalling, handing_over, engine)


def restarting_engine(config: RunConfig, model: Path, *, copy_weights: bool, helpers: Helpers | None = None) -> Engine:
    """The engine of the config, started anew where it can die without this process. Meanwhile `helpers` sample its
    turns."""
    if config.engine.name == "hf":  # on GPUs it would be in bfloat16, whatever the learner computes in
        config = _with_options(config, {"dtype": config.learner.compute_dtype})
    if config.engine.name not in _GPU_ENGINES:
        return make_engine(config, model)
    sleeps = config.placement.sleeps
    if sleeps:
        config = _with_options(config, {"sleeps": True})
    return RestartingEngine(
        partial(make_engine, config, model),
        budget=RestartBudget(config.workers.max_restarts),
        stall_seconds=stall_seconds(config),
        copy_weights=copy_weights,
        helpers=helpers,
        shelf_on_host=sleeps,  # on the GPU it would stay there in everybody's turn
    )


def stall_seconds(config: RunConfig) -> float:
    """After which a worker without any progress is taken for hung."""
    if config.workers.stall_seconds is not None:
        return config.workers.stall_seconds
    return config.limits.max_seconds + _GRACE_SECONDS


def gpus_of_worker(config: RunConfig) -> float:
    """That Ray reserves for each."""
    if config.workers.gpus is not None:
        return config.workers.gpus
    if config.engine.name not in _GPU_ENGINES or not _has_gpus():
        return 0
    options: dict[str, Any] = config.engine.options
    return int(options.get("tensor_parallel_size", 1)) * int(options.get("pipeline_parallel_size", 1))


def on_its_part(config: RunConfig) -> RunConfig:
    """Tell vLLM that it has a part of a GPU only."""
    gpus = config.workers.gpus
    if gpus is None or not 0 < gpus < 1 or config.engine.name != "vllm":
        return config
    return _with_options(config, {"gpu_memory_utilization": round(_USED * gpus, 3), "shares_gpu": True})


def _with_options(config: RunConfig, options: dict[str, Any]) -> RunConfig:
    """With these for the engine, where the config does not say otherwise."""
    engine = config.engine.model_copy(update={"options": options | config.engine.options})
    return config.model_copy(update={"engine": engine})


def _learner_gpus(config: RunConfig) -> int:
    """Of each of the learner's nodes, that no worker may have."""
    wanted = config.placement
    shares = wanted.layout in ("colocated", "mixed") or config.learner.device == "cpu"
    return 0 if wanted.n_gpus is None or shares else config.learner.ranks // (config.learner.nodes or 1)


def _has_gpus() -> bool:
    import torch

    return torch.cuda.device_count() > 0  # `is_available` would fix which devices this process sees
