"""Which layouts of a run fit a number of GPUs, the fastest first, and why the others do not."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentloop.config.learner import BackendName
from agentloop.trainer.planning.flops import ModelFlops
from agentloop.trainer.sizing.gpus import Gpu
from agentloop.trainer.sizing.layouts import Layout, candidates, problems
from agentloop.trainer.sizing.memory import Precision, TrainingMemory, training_memory
from agentloop.trainer.sizing.model_shape import ModelShape
from agentloop.trainer.sizing.sharing import Sharing
from agentloop.trainer.sizing.step_time import Work, rollout_seconds, training_seconds


@dataclass(slots=True, frozen=True, kw_only=True)
class Cluster:
    """Engines are on the learner's GPUs, or on `engine_gpus` of their own, which then work at the same time."""

    gpu: Gpu
    gpus: int
    gpus_per_node: int = 8
    engine_gpus: int = 0
    sleep: bool | Literal["auto"] = "auto"
    """Engines on the learner's GPUs sleep while it trains; auto: where only that fits, or is faster."""

    @property
    def learner_gpus(self) -> int:
        return self.gpus - self.engine_gpus


@dataclass(slots=True, frozen=True, kw_only=True)
class Run:
    """What is trained, on what."""

    shape: ModelShape
    flops: ModelFlops
    work: Work
    precision: Precision
    concurrency: int
    """Most episodes in flight."""
    reference: bool = False
    """One is loaded, as large as the model."""
    companions: int = 0
    """Models beside it that are trained as it is."""
    companion_references: int = 0
    """Of those, with a reference model that is loaded."""
    needs_fsdp: bool = False
    """The other backend has no critic."""
    lora_rank: int = 0
    """Of adapters; 0: all weights are trained."""
    scale: float = 1.0
    """Measured over estimated seconds of training."""

    @classmethod
    def of(cls, hf_config: Any, work: Work, precision: Precision, **options: Any) -> Run:
        shape, flops = ModelShape.from_config(hf_config), ModelFlops.from_config(hf_config)
        return cls(shape=shape, flops=flops, work=work, precision=precision, **options)


@dataclass(slots=True, frozen=True, kw_only=True)
class Estimate:
    """One layout. Bytes are of one GPU, seconds of one step."""

    layout: Layout
    engine_tensor: int
    training: TrainingMemory
    engine_weights: float
    cache: float
    """Left for keys and values; negative where not even the rest fits."""
    slots: float
    """Episodes of mean length that the caches of one engine hold."""
    training_seconds: float
    rollout_seconds: float
    step_seconds: float
    sharing: Sharing
    obstacle: str = ""
    """Why it does not fit."""

    def settings(self) -> dict[str, str | int | bool]:
        """Of a config, that say this."""
        learner = {f"learner.{name}": value for name, value in self.layout.settings().items()}
        return learner | ({"placement.sleep": True} if self.sharing.sleeps else {})


@dataclass(slots=True, frozen=True)
class Found:
    """What a search came to."""

    fitting: list[Estimate]
    obstacles: Counter[str] = field(default_factory=Counter)
    """Reason -> layouts."""


def search(run: Run, cluster: Cluster, backends: tuple[BackendName, ...]) -> Found:
    """Every candidate. Of those that fit and take the same time within 1 % the simplest is first, then the one that
    leaves most memory."""
    obstacles: Counter[str] = Counter()
    fitting: list[Estimate] = []
    longest = run.work.longest
    backends = ("fsdp",) if run.needs_fsdp or run.lora_rank else backends  # the other one has no adapters
    for layout in candidates(cluster.learner_gpus, cluster.gpus_per_node, longest, backends, run.shape):
        if reasons := list(problems(layout, run.shape)):
            obstacles.update(reasons[:1])
            continue
        best = None
        for tensor in _engine_tensors(run.shape, cluster):
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


def _engine_tensors(shape: ModelShape, cluster: Cluster) -> list[int]:
    most = min(cluster.gpus_per_node, cluster.engine_gpus or cluster.gpus)
    return [n for n in (1, 2, 4, 8) if n <= most and shape.heads % n == 0 and shape.kv_heads % n == 0]


def estimated(run: Run, cluster: Cluster, layout: Layout, engine_tensor: int) -> Estimate:
    """Memory and time of one layout."""
    ways: tuple[bool, ...] = (False, True) if cluster.sleep == "auto" else (cluster.sleep,)
    every = [_estimated(run, cluster, layout, engine_tensor, sleeps=way) for way in ways]
    if cluster.engine_gpus:
        return every[0]
    fitting = [estimate for estimate in every if not estimate.obstacle]
    return min(fitting, key=lambda estimate: estimate.step_seconds, default=every[-1])


def _estimated(run: Run, cluster: Cluster, layout: Layout, engine_tensor: int, *, sleeps: bool) -> Estimate:
    shape, work, gpu = run.shape, run.work, cluster.gpu
    micro_batches = work.micro_batches(layout)
    whole = shape.parameters * run.precision.compute + 4 * shape.trained_parameters(run.lora_rank)
    training = training_memory(
        shape,
        layout,
        precision=run.precision,
        micro_batches=micro_batches,
        reference=run.reference,
        # As the learner decides where nothing is said.
        gather_once=whole <= gpu.memory / 4,
        lora_rank=run.lora_rank,
    )
    training = replace(training, companion=_beside(run, layout, training))
    shares = not cluster.engine_gpus
    sharing = Sharing(
        gpu=gpu,
        training=training,
        engine_weights=2 * shape.parameters / engine_tensor,
        shelf=_shelf(shape, layout, cluster, sleeps=sleeps),
        is_shared=shares,
        sleeps=sleeps and shares,
    )
    engines = max((cluster.engine_gpus or cluster.gpus) // engine_tensor, 1)
    per_token = shape.kv_bytes_per_token / engine_tensor
    slots = min(max(sharing.cache, 0.0) / per_token / work.mean_tokens, run.concurrency / engines)
    train = training_seconds(shape, run.flops, layout, work, gpu, cluster.gpus_per_node, run.scale, run.lora_rank)
    train *= 1 + run.companions
    rollout = rollout_seconds(shape, work, engine_tensor, engines, slots, gpu)
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


def _beside(run: Run, layout: Layout, training: TrainingMemory) -> float:
    """Bytes of companions while the policy has its step."""
    reference = run.precision.compute * run.shape.parameters / layout.shards
    return run.companions * (training.weights + training.optimizer) + run.companion_references * reference


def _shelf(shape: ModelShape, layout: Layout, cluster: Cluster, *, sleeps: bool) -> float:
    """Bytes on a GPU of the learner: spread over its ranks of a node, or in the memory of the host."""
    if layout.offload == "all" or sleeps:
        return 0.0
    return 2 * shape.parameters / min(layout.gpus, cluster.gpus_per_node)
