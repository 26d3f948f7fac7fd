"""Memory of one GPU while it trains, in bytes, from the shape of the model and a layout.

The parts are counted, not fitted: what the optimizer keeps for a parameter, which activations the backward of a layer
reads (FlashAttention; fsdp compiled, megatron not), the logits of a chunk. `layout.token_budget` is the row that is
counted: the plan's budget is a bound, and equal rows of a small batch stay below it. With the largest row that there
was the sum is within 6 % of measured peaks (`tests/trainer/sizing/test_memory.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentloop.config.learner import SPARSE, LearnerConfig
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.model_shape import ModelShape

_LOGITS_CHUNK = 832 * 2**20
"""As in `head_chunks`."""
_TILE = 16384
"""As in `backends.recomputed`."""
OUTSIDE = 1.5 * 2**30
"""What a GPU holds beside tensors: CUDA's context, buffers of collectives, the allocator's gaps; assumed."""
_HALF, _SINGLE = 2, 4
_SIZES = {"float32": _SINGLE, "bfloat16": _HALF}


@dataclass(slots=True, frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes of tensors of one rank at its peak, which is when the last micro-batch turns from forward to backward."""

    weights: float
    """As the optimizer changes them."""
    compute_weights: float
    """The copy in compute_dtype that matrix products read."""
    gradients: float
    optimizer: float
    activations: float
    """Kept for the backward, of all micro-batches in flight."""
    head: float
    """The gradient of the LM head, which waits for that of the embedding."""
    working: float
    """Logits of a chunk, or what the backward of one layer needs; one comes after the other."""
    reference: float = 0.0
    """Weights of a reference model."""
    companion: float = 0.0
    """Of a critic or a process reward model between its steps."""

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(slots=True, frozen=True, kw_only=True)
class Precision:
    """Bytes of a number."""

    parameter: int = _SINGLE
    compute: int = _HALF

    @classmethod
    def of(cls, config: LearnerConfig) -> Precision:
        """That a config asks for."""
        return cls(parameter=_SIZES[config.param_dtype], compute=_SIZES[config.compute_dtype])


def training_memory(
    shape: ModelShape,
    layout: Layout,
    *,
    precision: Precision = Precision(),
    micro_batches: int = 2,
    reference: bool = False,
    gather_once: bool = False,
    lora_rank: int = 0,
) -> TrainingMemory:
    """`micro_batches` of a rank and update: while the first is computed there are no gradients yet. `gather_once` as of
    `LearnerConfig`; with a `lora_rank` adapters are trained. Of several stages, that which needs most."""
    if lora_rank:
        return _adapter_memory(shape, layout, precision, reference, gather_once, lora_rank)
    stages = {True, False} if layout.pipeline > 1 else {True}
    every = (
        _stage_memory(shape, layout, precision, micro_batches, reference, gather_once, is_first=is_first)
        for is_first in stages
    )
    return max(every, key=lambda memory: memory.total)


def _stage_memory(
    shape: ModelShape,
    layout: Layout,
    precision: Precision,
    micro_batches: int,
    reference: bool,
    gather_once: bool,
    *,
    is_first: bool,
) -> TrainingMemory:
    """Of the first or the last stage; with one stage the first is both. The first has the embedding and most
    micro-batches in flight, the last the LM head."""
    is_last = layout.pipeline == 1 or not is_first
    parameters = _rank_parameters(shape, layout)
    is_fsdp = layout.backend == "fsdp"
    kept = (_fsdp if is_fsdp else _megatron)(shape, layout, parameters, precision)
    if is_fsdp and gather_once and layout.gpus > 1 and layout.offload != "all":
        kept |= {"compute_weights": precision.compute * parameters, "gradients": _SINGLE * parameters}
    activations = _activations(shape, layout, precision, _in_flight(layout, micro_batches, is_first=is_first))
    if is_fsdp and micro_batches == 1 and layout.gpus == 1:  # activations go while gradients come
        kept["gradients"] = max(kept["gradients"] - activations, 0.0)
    logits = min(_LOGITS_CHUNK, precision.compute * layout.rank_tokens * shape.vocab / layout.tensor)
    working = _working(shape, layout, precision)
    return TrainingMemory(
        **kept,
        activations=activations,
        head=precision.compute * shape.embedding_parameters / layout.tensor if is_last else 0.0,
        working=max(logits, working) if is_last else working,
        reference=precision.compute * parameters / (layout.shards if is_fsdp else 1) if reference else 0.0,
    )


def _adapter_memory(
    shape: ModelShape, layout: Layout, precision: Precision, reference: bool, gather_once: bool, rank: int
) -> TrainingMemory:
    """Of fsdp: a frozen model in compute_dtype, and what trains its adapters."""
    adapters = shape.adapter_parameters(rank)
    layer = shape.dense_layer_parameters + shape.expert_layer_parameters
    whole = shape.parameters if gather_once else 2 * layer + shape.vocabulary_parameters
    is_away = layout.offload == "all"
    working = _working(shape, layout, precision)
    kept = precision.compute * shape.parameters + precision.parameter * adapters
    return TrainingMemory(
        weights=0.0 if is_away else kept / layout.shards,
        compute_weights=precision.compute * whole if layout.gpus > 1 or is_away else precision.compute * adapters,
        gradients=_SINGLE * adapters / (1 if gather_once else layout.shards),
        optimizer=2 * precision.parameter * adapters / layout.shards if layout.offload == "off" else 0.0,
        activations=_activations(shape, layout, precision, 1),
        head=0.0,
        working=max(min(_LOGITS_CHUNK, precision.compute * layout.rank_tokens * shape.vocab), working),
        reference=precision.compute * shape.parameters / layout.shards if reference else 0.0,
    )


def _in_flight(layout: Layout, micro_batches: int, *, is_first: bool) -> float:
    """Micro-batches whose activations a stage holds; interleaved, each in the pieces that have had it."""
    if layout.virtual == 1:
        return min(layout.pipeline, micro_batches) if is_first else 1
    behind = layout.pipeline - 1 if is_first else 0
    pieces = 2 * behind + (layout.virtual - 1) * layout.pipeline + 1
    return min(pieces / layout.virtual, micro_batches)


def _rank_parameters(shape: ModelShape, layout: Layout) -> float:
    """Of one rank before any sharding over data-parallel ranks; of the first stage, which has the embedding."""
    layer = shape.dense_layer_parameters / layout.tensor
    layer += shape.expert_layer_parameters / layout.expert
    vocabulary = shape.vocabulary_parameters if layout.pipeline == 1 else shape.embedding_parameters
    return shape.layers / layout.pipeline * layer + vocabulary / layout.tensor


def _fsdp(shape: ModelShape, layout: Layout, parameters: float, precision: Precision) -> dict[str, float]:
    """Everything is sharded over the ranks of a copy; two layers at a time are whole."""
    shard = parameters / layout.shards
    layer = shape.dense_layer_parameters + shape.expert_layer_parameters
    whole = 2 * layer + shape.vocabulary_parameters
    is_away = layout.offload == "all"
    gathered = parameters if layout.gpus == 1 and not is_away else min(parameters, shard * (not is_away) + whole)
    copies = precision.compute * gathered if layout.gpus > 1 or precision.compute != precision.parameter else 0.0
    # While a layer's gradients are summed over ranks they are there whole, in float32.
    summed = _SINGLE * layer if layout.gpus > 1 else precision.compute * layer
    return {
        "weights": 0.0 if is_away else precision.parameter * shard,
        "compute_weights": copies,
        "gradients": summed + (0.0 if is_away else precision.parameter * shard),
        "optimizer": 2 * precision.parameter * shard if layout.offload == "off" else 0.0,
    }


def _megatron(shape: ModelShape, layout: Layout, parameters: float, precision: Precision) -> dict[str, float]:
    """Weights and float32 gradients are whole on every data-parallel rank, the optimizer is sharded over them."""
    copies = layout.data * layout.context
    experts = shape.layers / layout.pipeline * shape.expert_layer_parameters / layout.expert
    expert_copies = max(layout.gpus // layout.pipeline // layout.expert, 1)
    sharded = (parameters - experts) / copies + experts / expert_copies
    has_main = precision.compute < _SINGLE
    return {
        "weights": _SINGLE * sharded if has_main else 0.0,
        "compute_weights": precision.compute * parameters,
        "gradients": _SINGLE * parameters,
        "optimizer": 2 * _SINGLE * sharded,
    }


def _activations(shape: ModelShape, layout: Layout, precision: Precision, in_flight: float) -> float:
    layers = shape.layers / layout.pipeline
    tokens = layout.rank_tokens * in_flight
    if layout.checkpointing in ("full", "sparse"):
        inputs = layers / SPARSE + SPARSE - 1 if layout.checkpointing == "sparse" else layers
        return precision.compute * tokens * inputs * shape.hidden / layout.tensor
    features = (
        _selected_features(shape, layout) if layout.checkpointing == "selective" else _kept_features(shape, layout)
    )
    statistics = _SINGLE * shape.heads / layout.tensor
    return tokens * layers * (precision.compute * features / layout.tensor + statistics)


def _kept_features(shape: ModelShape, layout: Layout) -> float:
    """Of a token and layer: what the backward of the layer reads."""
    stream: float = 4 * shape.hidden  # before and after the norms of attention and MLP
    attention = 2 * shape.query + 2 * shape.key  # queries, keys, values, output
    if shape.qk_norm:
        attention += shape.query + shape.key  # queries and keys before their norms
    width, copies = (shape.expert_mlp, shape.experts_per_token) if shape.num_experts else (shape.mlp, 1)
    wide = copies * 3 * width  # both halves and their product
    if shape.num_experts:
        wide += copies * shape.hidden  # a token for each of its experts
    if layout.backend == "megatron":
        # Layers are not compiled: the activated half is kept too, results of norms before rotation, masks of dropout.
        wide += copies * width
        attention += shape.query + shape.key
        stream += 2.5 * shape.hidden
        if layout.context > 1:
            attention += shape.query  # the output of attention before and after the exchange
    return stream + attention + wide


def _selected_features(shape: ModelShape, layout: Layout) -> float:
    """Of a token and layer with selective checkpointing."""
    if layout.backend == "megatron":  # the MLP is computed again
        width, copies = (shape.expert_mlp, shape.experts_per_token) if shape.num_experts else (shape.mlp, 1)
        again = copies * (4 * width + (shape.hidden if shape.num_experts else 0))
        return _kept_features(shape, layout) - again
    # Results of attention and of the narrow matrix products that the backward reads, and the layer's input.
    return 2 * shape.hidden + 2 * shape.query + 2 * shape.key


def _working(shape: ModelShape, layout: Layout, precision: Precision) -> float:
    """The gradient of the product inside the MLP; with checkpointing also what one layer keeps."""
    if layout.backend == "fsdp" and layout.checkpointing in ("full", "sparse") and not shape.num_experts:
        return precision.compute * _working_in_halves(shape, layout.rank_tokens)
    width: float = shape.experts_per_token * shape.expert_mlp if shape.num_experts else shape.mlp
    if layout.checkpointing != "off":
        width += _kept_features(shape, layout)
    return precision.compute * layout.rank_tokens * width / layout.tensor


def _working_in_halves(shape: ModelShape, tokens: int) -> float:
    """Numbers of one layer that `backends.recomputed` differentiates: its attention, or its MLP for a tile."""
    kept = 5 * shape.hidden  # the input before and after its norm, what is between the halves, gradients of both ends
    kept += 2 * shape.query + 2 * shape.key
    if shape.qk_norm:
        kept += shape.query + shape.key
    attention = 2 * shape.query + 2 * shape.key  # gradients
    attention += 2 * shape.query  # the kernel sums those of queries in float32
    mlp = 2 * shape.hidden + 4 * shape.mlp
    return tokens * kept + max(tokens * attention, min(tokens, _TILE) * mlp)
