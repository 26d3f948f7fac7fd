"""Seconds of a training step and of its rollouts, from FLOPs, bytes and rates.

The estimates are rough; their purpose is to rank layouts. On one H200 with FlashAttention 4 they are within 20 % of the
measurements (`benchmarks/results/train_step_*`). On two H200 the ranking is correct (`train_step_*_2gpus*`), but
seconds are 25 to 50 % too low. `calibration` corrects them with the metrics of a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentloop.config.learner import SPARSE
from agentloop.trainer.planning.flops import ModelFlops, causal_pairs
from agentloop.trainer.sizing.gpus import Gpu
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.model_shape import ModelShape

_MFU = ((512, 0.36), (1024, 0.45), (2048, 0.53), (4096, 0.55))
"""Pairs of (hidden size of a tensor-parallel rank, fraction of peak FLOPs that a step reaches).

The first entry comes from a model of width 1024 over two ranks, the last from single matrix products.
"""
_UNCOMPILED = 0.72
"""Factor on this fraction if layers are not compiled: megatron compared with fsdp in `train_step_*_2gpus_fa2`."""
_FP8 = 0.68
"""Time of linear layers in FP8 over that in bfloat16, rounding included (`train_step_fp8_4B_25`)."""
_OVERLAP = 0.7
"""Assumed fraction of FSDP's transfers that overlap with computation."""
_PCIE, _HOST_MEMORY = 25e9, 50e9
"""Assumed bytes per second of one GPU's share of PCIe and of host memory, for offload."""
_HALF, _SINGLE = 2, 4


@dataclass(slots=True, frozen=True)
class Work:
    """The trajectories of one step."""

    trajectories: int
    mean_tokens: float
    longest: int
    """Largest number of tokens of a trajectory."""
    trained: float
    """Fraction of the tokens that are sampled."""
    updates: int = 1

    @property
    def tokens(self) -> float:
        """Tokens of all trajectories."""
        return self.trajectories * self.mean_tokens

    def busy(self, layout: Layout) -> int:
        """Return the data-parallel ranks with work: an update has no more of them than trajectories."""
        return max(1, min(layout.data, -(-self.trajectories // self.updates)))

    def micro_batches(self, layout: Layout) -> int:
        """Return the micro-batches per rank and update, filled to 90 % on average."""
        of_rank = self.tokens / self.busy(layout) / self.updates
        return max(1, -(-int(of_rank) // int(0.9 * layout.token_budget)))


def step_flops(flops: ModelFlops, work: Work, *, is_frozen: bool = False, fp8: bool = False) -> float:
    """Return the FLOPs of forward and backward passes; frozen weights have no gradient.

    With `fp8`, those of linear layers count as many as bfloat16 computes in the same time. The mean square of lengths
    is assumed to be 1.5 times the square of the mean.
    """
    pairs = 1.5 * causal_pairs(round(work.mean_tokens)) * (flops.per_pair + flops.per_window_pair)
    per_token = flops.per_token * (_FP8 if fp8 else 1.0)
    matrices = (per_token + flops.per_head_token * work.trained) * work.mean_tokens
    return (3 * pairs + (2 if is_frozen else 3) * matrices) * work.trajectories


def training_seconds(
    shape: ModelShape,
    flops: ModelFlops,
    layout: Layout,
    work: Work,
    gpu: Gpu,
    gpus_per_node: int,
    scale: float = 1.0,
    lora_rank: int = 0,
    *,
    fp8: bool = False,
) -> float:
    """Return the training seconds of one step with all its updates.

    `scale` is the ratio of measured to estimated seconds on this kind of GPU. A `lora_rank` above 0 trains adapters.
    With `fp8`, linear layers multiply in FP8, but not experts.
    """
    trained = shape.trained_parameters(lora_rank)
    needed = step_flops(flops, work, is_frozen=lora_rank > 0, fp8=fp8 and not shape.num_experts)
    recomputed = {"off": 0.0, "selective": 0.12, "full": 1 / 3, "sparse": (2 - 1 / SPARSE) / 3}[layout.checkpointing]
    efficiency = _efficiency(shape.hidden / layout.tensor) * (_UNCOMPILED if layout.backend == "megatron" else 1.0)
    busy_gpus = work.busy(layout) * layout.tensor * layout.pipeline * layout.context
    compute = needed * (1 + recomputed) / busy_gpus / (gpu.flops * efficiency)
    micro_batches = work.micro_batches(layout)
    if layout.pipeline > 1:
        compute *= 1 + (layout.pipeline - 1) / micro_batches / layout.virtual
    transfers = _transfer_seconds(shape, trained, layout, micro_batches, gpu, gpus_per_node) * work.updates
    return (compute + transfers + work.updates * _optimizer_seconds(trained, layout, gpu)) * scale


def _efficiency(hidden: float) -> float:
    """Interpolate the fraction of peak FLOPs linearly between the entries of `_MFU`."""
    (low, first), *rest = _MFU
    if hidden <= low:
        return first * max(hidden / low, 0.05)
    for high, last in rest:
        if hidden <= high:
            return first + (last - first) * (hidden - low) / (high - low)
        low, first = high, last
    return first


def _transfer_seconds(
    shape: ModelShape, trained: int, layout: Layout, micro_batches: int, gpu: Gpu, gpus_per_node: int
) -> float:
    """Return the seconds of transfers of one update; there are `trained` gradients."""

    def rate(ranks: int) -> float:
        return gpu.link if ranks <= gpus_per_node else gpu.network

    parameters = shape.parameters / (layout.tensor * layout.pipeline)
    gradients = _SINGLE * trained / (layout.tensor * layout.pipeline)
    seconds = 0.0
    if layout.backend == "fsdp" and layout.gpus > 1:
        gathered = 2 * _HALF * parameters + gradients
        seconds += (1 - _OVERLAP) * micro_batches * gathered / rate(layout.shards)
        if layout.copies > 1:  # gradients of shards are summed over nodes
            seconds += (1 - _OVERLAP) * micro_batches * gradients / layout.shards / gpu.network
    if layout.offload == "all":  # per micro-batch, weights are loaded twice and gradients stored once
        seconds += micro_batches * (2 * _SINGLE * parameters + gradients) / layout.shards / _PCIE
    if layout.backend == "megatron" and layout.gpus > 1:
        copies = layout.data * layout.context
        seconds += (_SINGLE + _HALF) * parameters / rate(layout.gpus) if copies > 1 else 0.0
    stream = _HALF * layout.rank_tokens * micro_batches * shape.hidden
    layers = shape.layers / layout.pipeline
    seconds += 8 * layers * stream * (layout.tensor - 1) / layout.tensor / rate(layout.tensor)
    if layout.context > 1:
        heads = 4 * (shape.query + shape.key) / shape.hidden / layout.tensor
        seconds += heads * layers * stream / rate(layout.tensor * layout.context)
    if layout.expert > 1:
        seconds += 4 * shape.experts_per_token * layers * stream / rate(layout.expert * layout.tensor)
    return seconds


def _optimizer_seconds(trained: int, layout: Layout, gpu: Gpu) -> float:
    """Return the seconds of AdamW: its bytes over the memory bandwidth, or over PCIe if its state is offloaded."""
    shard = trained / layout.shards
    if layout.offload == "optimizer":
        return 8 * shard / _PCIE  # both directions at once
    if layout.offload == "all":
        return 28 * shard / _HOST_MEMORY
    return 28 * shard / gpu.bandwidth


def rollout_seconds(
    shape: ModelShape, work: Work, tensor: int, engines: int, slots: float, gpu: Gpu, *, fp8: bool = False
) -> float:
    """Return the rollout seconds of one step, with `slots` episodes in flight per engine.

    Each decoding step reads the weights, with `fp8` in 8 bits, and the caches of all episodes in flight.
    """
    sampled = work.tokens * work.trained
    in_flight = max(min(slots * engines, work.trajectories), 1.0)
    at_once = in_flight / min(engines, in_flight)  # one engine samples an episode, token after token
    hit = min(1.0, at_once * shape.experts_per_token / shape.num_experts) if shape.num_experts else 0.0
    bytes_read = shape.engine_bytes(fp8=fp8, experts=hit) + at_once * shape.kv_bytes_per_token * work.mean_tokens / 2
    token_step = bytes_read / (0.7 * tensor * gpu.bandwidth) + 4e-3  # plus the engine's work between two steps
    return sampled / in_flight * token_step
