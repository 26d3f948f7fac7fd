"""Search for layouts of a run that fit a number of GPUs, fastest first, and explain why the others do not fit."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentloop.config.learner import BackendName
from agentloop.errors import UserError
from agentloop.trainer.planning.flops import ModelFlops
from agentloop.trainer.sizing.gpus import Gpu
from agentloop.trainer.sizing.layouts import Layout, candidates, problems
from agentloop.trainer.sizing.memory import Precision, TrainingMemory, training_memory
from agentloop.trainer.sizing.model_shape import ModelShape
from agentloop.trainer.sizing.placement import Placement
from agentloop.trainer.sizing.sharing import Sharing
from agentloop.trainer.sizing.step_time import Work, rollout_seconds, training_seconds


@dataclass(slots=True, frozen=True, kw_only=True)
class Cluster:
    """GPUs of a run: engines share the learner's GPUs, or use `engine_gpus` of their own concurrently."""

    gpu: Gpu
    gpus: int
    gpus_per_node: int = 8
    engine_gpus: int = 0
    sleep: bool | Literal["auto"] = "auto"
    """Whether engines on the learner's GPUs sleep while it trains; auto: only if nothing else fits, or if it is
    faster."""

    @property
    def learner_gpus(self) -> int:
        """GPUs of the learner."""
        return self.gpus - self.engine_gpus

    @property
    def nodes(self) -> int:
        """Nodes of the run; a run has the same number of GPUs on each."""
        return -(-self.gpus // self.gpus_per_node)

    def placement(self, layout: Layout, engine_tensor: int) -> Placement:
        """Return where learner and engines of a layout are."""
        return Placement(
            layout="separate" if self.engine_gpus else "colocated",
            nnodes=self.nodes,
            gpus_per_node=self.gpus // self.nodes,
            learner_gpus=self.learner_gpus,
            model_parallel=layout.tensor * layout.pipeline * layout.context,
            engine_tensor=engine_tensor,
        )

    def settings(self) -> dict[str, str | int | None]:
        """Return the settings of a configuration for these GPUs, defaults included."""
        return {
            "placement.n_gpus": self.gpus,
            "placement.nnodes": self.nodes,
            "placement.layout": "separate" if self.engine_gpus else "colocated",
            "placement.learner_gpus": self.learner_gpus if self.engine_gpus else None,
        }


@dataclass(slots=True, frozen=True, kw_only=True)
class PlannedRun:
    """Properties of a run that estimates need: its models and the work of a step."""

    shape: ModelShape
    flops: ModelFlops
    work: Work
    precision: Precision
    concurrency: int
    """Most episodes in flight on one engine."""
    reference: bool = False
    """Whether a reference model is loaded; it is as large as the policy."""
    auxiliary_models: int = 0
    """Trained auxiliary models; each is as large as the policy."""
    auxiliary_references: int = 0
    """Loaded reference models of auxiliary models."""
    fsdp_only: str = ""
    """Reason why megatron cannot train it, with the fix; empty if it can."""
    lora_rank: int = 0
    """Rank of the adapters; 0: all weights are trained."""
    fp8: bool = False
    """Whether linear layers of the learner multiply in FP8."""
    engine_fp8: bool = False
    """Whether engines have linear layers and experts in FP8."""
    splits_engine: bool = True
    """Whether one engine can use several GPUs."""
    shares_prefixes: bool = False
    """Whether the config asks for shared prompts, which context parallelism does not support."""
    scale: float = 1.0
    """Ratio of measured to estimated training seconds."""

    @classmethod
    def of(cls, hf_config: Any, work: Work, precision: Precision, **options: Any) -> PlannedRun:
        """Read shape and FLOPs of the model from a transformers config."""
        shape, flops = ModelShape.from_config(hf_config), ModelFlops.from_config(hf_config)
        return cls(shape=shape, flops=flops, work=work, precision=precision, **options)


@dataclass(slots=True, frozen=True, kw_only=True)
class Estimate:
    """Estimate of one layout: bytes of one GPU, and seconds of one step."""

    layout: Layout
    engine_tensor: int
    training: TrainingMemory
    engine_weights: float
    cache: float
    """Bytes left for the KV cache; negative if the rest does not fit."""
    slots: float
    """Episodes of mean length that the caches of one engine hold."""
    training_seconds: float
    rollout_seconds: float
    step_seconds: float
    sharing: Sharing
    obstacle: str = ""
    """Reason why it does not fit; empty if it fits."""

    def settings(self, cluster: Cluster) -> dict[str, str | int | bool | None]:
        """Return the settings of a configuration with this layout on the GPUs of `cluster`, defaults included."""
        learner = {f"learner.{name}": value for name, value in self.layout.settings().items()}
        own = {
            "engine.options.tensor_parallel_size": self.engine_tensor,
            "engine.options.pipeline_parallel_size": 1,
            "placement.sleep": self.sharing.sleeps,
        }
        return cluster.settings() | learner | own


@dataclass(slots=True, frozen=True)
class Found:
    """Result of a search."""

    fitting: list[Estimate]
    obstacles: Counter[str] = field(default_factory=Counter)
    """Reason -> number of layouts that do not fit for this reason."""


def search(run: PlannedRun, cluster: Cluster, backends: tuple[BackendName, ...]) -> Found:
    """Estimate all candidate layouts and sort those that fit.

    Among layouts whose times are within 1 %, the simplest comes first, then the one with the most free memory. Raises
    `UserError` if none of `backends` can train the run.
    """
    if run.fsdp_only:
        backends = tuple(backend for backend in backends if backend != "megatron")
        if not backends:
            raise UserError(f"{run.fsdp_only} `agentloop plan --backend fsdp` lists the layouts of fsdp.")
    obstacles: Counter[str] = Counter()
    fitting: list[Estimate] = []
    longest = run.work.longest
    for layout in candidates(cluster.learner_gpus, cluster.gpus_per_node, longest, backends, run.shape):
        reasons = list(problems(layout, run.shape))
        if run.shares_prefixes and layout.backend == "megatron" and layout.context > 1:
            reasons.append("learner.share_prefixes is true, which context_parallel does not support.")
        if reasons:
            obstacles.update(reasons[:1])
            continue
        best = None
        for tensor in _engine_tensors(run, cluster):
            if reasons := list(cluster.placement(layout, tensor).problems()):
                obstacles.update(reasons[:1])
                continue
            estimate = estimated(run, cluster, layout, tensor)
            if estimate.obstacle:
                obstacles[estimate.obstacle] += 1
            elif best is None or estimate.step_seconds < best.step_seconds:
                best = estimate
        if best is not None:
            fitting.append(best)
    fitting.sort(key=_rank)
    return Found(fitting, obstacles)


def _rank(found: Estimate) -> tuple[float, int, float]:
    return round(math.log(found.step_seconds), 2), found.layout.num_settings, -found.cache


def _engine_tensors(run: PlannedRun, cluster: Cluster) -> list[int]:
    shape = run.shape
    most = min(cluster.gpus_per_node, cluster.engine_gpus or cluster.gpus) if run.splits_engine else 1
    return [n for n in (1, 2, 4, 8) if n <= most and shape.heads % n == 0 and shape.kv_heads % n == 0]


def estimated(run: PlannedRun, cluster: Cluster, layout: Layout, engine_tensor: int) -> Estimate:
    """Estimate memory and time of one layout."""
    ways: tuple[bool, ...] = (False, True) if cluster.sleep == "auto" else (cluster.sleep,)
    every = [_estimated(run, cluster, layout, engine_tensor, sleeps=way) for way in ways]
    if cluster.engine_gpus:
        return every[0]
    fitting = [estimate for estimate in every if not estimate.obstacle]
    return min(fitting, key=lambda estimate: estimate.step_seconds, default=every[-1])


def _estimated(run: PlannedRun, cluster: Cluster, layout: Layout, engine_tensor: int, *, sleeps: bool) -> Estimate:
    shape, work, gpu = run.shape, run.work, cluster.gpu
    micro_batches = work.micro_batches(layout)
    whole = shape.parameters * run.precision.compute + 4 * shape.trained_parameters(run.lora_rank)
    training = training_memory(
        shape,
        layout,
        precision=run.precision,
        micro_batches=micro_batches,
        reference=run.reference,
        # The default of the learner.
        gather_once=whole <= gpu.memory / 4,
        lora_rank=run.lora_rank,
    )
    training = replace(training, auxiliary=_auxiliary_memory(run, layout, training))
    shares = not cluster.engine_gpus
    sharing = Sharing(
        gpu=gpu,
        training=training,
        engine_weights=shape.engine_bytes(fp8=run.engine_fp8) / engine_tensor,
        new_weights=2 * shape.parameters / engine_tensor,
        shelf=_shelf(shape, layout, cluster, sleeps=sleeps),
        is_shared=shares,
        sleeps=sleeps and shares,
    )
    engines = max((cluster.engine_gpus or cluster.gpus) // engine_tensor, 1)
    per_token = shape.kv_bytes_per_token / engine_tensor
    slots = min(max(sharing.cache, 0.0) / per_token / work.mean_tokens, run.concurrency)
    train = training_seconds(
        shape, run.flops, layout, work, gpu, cluster.gpus_per_node, run.scale, run.lora_rank, fp8=run.fp8
    )
    train *= 1 + run.auxiliary_models
    rollout = rollout_seconds(shape, work, engine_tensor, engines, slots, gpu, fp8=run.engine_fp8)
    return Estimate(
        layout=layout,
        engine_tensor=engine_tensor,
        training=training,
        engine_weights=sharing.engine_weights,
        cache=sharing.cache,
        slots=slots,
        training_seconds=train,
        rollout_seconds=rollout,
        step_seconds=train + rollout + sharing.handover_seconds if shares else max(train, rollout),
        sharing=sharing,
        obstacle=sharing.obstacle(per_token * work.longest),
    )


def _auxiliary_memory(run: PlannedRun, layout: Layout, training: TrainingMemory) -> float:
    """Return the bytes of auxiliary models during a step of the policy."""
    reference = run.precision.compute * run.shape.parameters / layout.shards
    return run.auxiliary_models * (training.weights + training.optimizer) + run.auxiliary_references * reference


def _shelf(shape: ModelShape, layout: Layout, cluster: Cluster, *, sleeps: bool) -> float:
    """Return the bytes of the weight shelf on a GPU, spread over a node's learner ranks; 0 if it is on the host."""
    if layout.offload == "all" or sleeps:
        return 0.0
    return 2 * shape.parameters / min(layout.gpus, cluster.gpus_per_node)
