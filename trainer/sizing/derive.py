"""Derive the placement of a run from the number of GPUs and the model, before anything loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from agentloop.config.resolved import engine_degrees
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.sizing.gpus import Gpu
from agentloop.trainer.sizing.layouts import Layout, problems
from agentloop.trainer.sizing.placement import LayoutName, Placement
from agentloop.trainer.sizing.search import Cluster, PlannedRun, estimated


@dataclass(slots=True, frozen=True)
class Placed:
    """A placement with its estimated times and memory."""

    placement: Placement
    step_seconds: float
    training_seconds: float
    rollout_seconds: float
    obstacle: str
    """Reason why the placement does not fit into memory; empty if it fits."""
    engine_memory: float
    """Bytes of a GPU that an engine may use next to the learner, or while the learner sleeps."""
    sleeps: bool = False
    """Whether engines and learner take turns on shared GPUs."""
    handover_seconds: float = 0.0


def derive(config: RunConfig, run: PlannedRun, gpu: Gpu) -> Placed:
    """Return the placement with the shortest estimated step among those that `config.placement` allows.

    Raises `UserError` with the numbers if none is possible.
    """
    wanted = config.placement
    assert wanted.n_gpus is not None, "derive needs placement.n_gpus"
    if wanted.n_gpus % wanted.nnodes:
        raise UserError(
            f"placement.n_gpus is {wanted.n_gpus} and placement.nnodes {wanted.nnodes}: all nodes need the same "
            f"number of GPUs. Set n_gpus to a multiple of {wanted.nnodes}."
        )
    reasons: list[str] = []
    found: list[Placed] = []
    for placement in candidates(config, run):
        if faults := problems_of(config, placement, run):
            reasons.extend(fault for fault in faults if fault not in reasons)
            continue
        placed = _estimate(config, run, gpu, placement)
        if placed.obstacle:
            reasons.append(f"{placement.layout} with {placement.learner_gpus} learner GPUs: {placed.obstacle}")
        else:
            found.append(placed)
    if not found:
        raise UserError(
            f"The run cannot be placed on {wanted.n_gpus} GPUs ({wanted.nnodes} nodes). {' '.join(reasons[:4])} "
            "`agentloop plan` lists what fits."
        )
    return min(found, key=lambda placed: (placed.step_seconds, placed.placement.idle_gpus))


def candidates(config: RunConfig, run: PlannedRun) -> Iterator[Placement]:
    """Yield the placements that the config allows."""
    wanted = config.placement
    assert wanted.n_gpus is not None
    per_node = wanted.n_gpus // wanted.nnodes
    learner = config.learner
    model_parallel = learner.tensor_parallel * learner.pipeline_parallel * learner.context_parallel
    tensor, pipeline = engine_degrees(config)
    every: tuple[LayoutName, ...] = ("colocated", "separate", "mixed")
    for layout in every if wanted.layout == "auto" else (wanted.layout,):
        for learner_gpus in _learner_sizes(config, layout, per_node, model_parallel):
            yield Placement(
                layout=layout,
                nnodes=wanted.nnodes,
                gpus_per_node=per_node,
                learner_gpus=learner_gpus,
                model_parallel=model_parallel,
                engine_tensor=tensor,
                engine_pipeline=pipeline,
            )


def _learner_sizes(config: RunConfig, layout: str, per_node: int, model_parallel: int) -> list[int]:
    wanted = config.placement
    assert wanted.n_gpus is not None
    if layout == "colocated":
        return [wanted.n_gpus]
    if wanted.learner_gpus is not None:
        return [wanted.learner_gpus]
    most = wanted.n_gpus - 1
    of_one = range(model_parallel, min(per_node, most) + 1, model_parallel)
    of_several = [gpus for gpus in range(2 * per_node, most + 1, per_node) if gpus % model_parallel == 0]
    return [*of_one, *of_several] or [model_parallel]


def problems_of(config: RunConfig, placement: Placement, run: PlannedRun) -> list[str]:
    """Return a sentence for each reason, except memory, why the run cannot have the placement."""
    return [*placement.problems(), *_learner_faults(config, placement, run)]


def _learner_faults(config: RunConfig, placement: Placement, run: PlannedRun) -> list[str]:
    if placement.learner_gpus % placement.model_parallel:
        return []  # `Placement.problems` reports it
    tensor = placement.engine_tensor
    faults = list(problems(learner_layout(config, placement), run.shape))
    if config.learner.backend == "megatron" and run.fsdp_only:
        faults.append(run.fsdp_only)
    if run.shape.heads % tensor:
        faults.append(
            f"tensor_parallel_size={tensor} of engine.options does not divide the model's {run.shape.heads} attention "
            "heads."
        )
    return faults


def learner_layout(config: RunConfig, placement: Placement) -> Layout:
    """Return the layout of the learner on the GPUs of a placement."""
    learner = config.learner.replace(nodes=placement.learner_nodes)
    return Layout.of(learner, placement.learner_gpus)


def _estimate(config: RunConfig, run: PlannedRun, gpu: Gpu, placement: Placement) -> Placed:
    is_separate = placement.layout == "separate"
    engine_gpus = placement.num_engines * placement.engine_size
    cluster = Cluster(
        gpu=gpu,
        gpus=placement.learner_gpus + (engine_gpus if is_separate else 0),
        gpus_per_node=placement.gpus_per_node,
        engine_gpus=engine_gpus if is_separate else 0,
        sleep=wanted_sleep(config),
    )
    layout = learner_layout(config, placement)
    one = estimated(run, cluster, layout, placement.engine_tensor)
    seconds = one.step_seconds
    rollout = one.rollout_seconds
    if placement.layout == "mixed":
        # All engines sample, but engines on shared GPUs pause while the learner trains.
        rollout = one.rollout_seconds * max(placement.learner_gpus // placement.engine_size, 1) / placement.num_engines
        shared = placement.shared_engines / placement.num_engines
        seconds = max(rollout + shared * one.training_seconds, one.training_seconds)
        if one.sharing.sleeps:  # all engines sleep
            seconds = rollout + one.training_seconds + one.sharing.handover_seconds
    return Placed(
        placement,
        seconds,
        one.training_seconds,
        rollout,
        one.obstacle,
        engine_memory=gpu.memory - one.sharing.beside_engine,
        sleeps=one.sharing.sleeps,
        handover_seconds=one.sharing.handover_seconds,
    )


def wanted_sleep(config: RunConfig) -> bool | Literal["auto"]:
    """Return `placement.sleep`, but False for `auto` in mode partial, whose engines always sample."""
    wanted = config.placement.sleep
    return False if wanted == "auto" and config.staleness.mode == "partial" else wanted
