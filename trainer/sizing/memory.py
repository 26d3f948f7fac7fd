"""Memory of one GPU during training, in bytes, from the shape of the model and a layout.

The parts are counted, not fitted: optimizer state per parameter, activations that the backward pass of a layer reads
(with FlashAttention; fsdp is compiled, megatron is not) and the logits of a chunk. The length of a row is
`layout.token_budget`, an upper bound: rows of a small batch are shorter. With the actual length of the largest row, the
sum is within 6 % of measured peaks (`tests/trainer/sizing/test_memory.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentloop.config.learner import SPARSE, LearnerConfig
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.model_shape import ModelShape

_LOGITS_CHUNK = 832 * 2**20
"""Bytes of the logits of a chunk, as in `model.head.head_chunks`."""
_TILE = 16384
"""Tokens of a tile of the MLP, as in `model.activation_checkpointing`."""
OUTSIDE = 1.5 * 2**30
"""Assumed bytes of a GPU in addition to tensors: CUDA context, buffers of collectives, fragmentation."""
_HALF, _SINGLE = 2, 4
_SIZES = {"float32": _SINGLE, "bfloat16": _HALF, "float16": _HALF}


@dataclass(slots=True, frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes of tensors on one rank at its peak: at the end of the forward pass of the last micro-batch."""

    weights: float
    """Weights that the optimizer updates."""
    compute_weights: float
    """Copy of the weights in compute_dtype for matrix products."""
    gradients: float
    optimizer: float
    activations: float
    """Activations stored for the backward pass, of all micro-batches in flight."""
    head: float
    """Gradient of the LM head, which is kept until the gradient of the embedding is computed."""
    working: float
    """Logits of a chunk, or temporaries in the backward pass of one layer; these do not coexist."""
    reference: float = 0.0
    """Weights of a reference model."""
    auxiliary: float = 0.0
    """A critic or process reward model between its steps."""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(slots=True, frozen=True, kw_only=True)
class Precision:
    """Bytes of one number."""

    parameter: int = _SINGLE
    compute: int = _HALF

    @classmethod
    def of(cls, config: LearnerConfig) -> Precision:
        """Return the precision of a configuration."""
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
    """Return the memory of one rank; with several pipeline stages, of the stage that needs most.

    `micro_batches` is their number per rank and update; during the first there are no gradients yet. `gather_once` is
    as in `LearnerConfig`. A `lora_rank` above 0 trains adapters.
    """
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
    """Return the memory of the first or the last stage; a single stage is both.

    The first stage has the embedding and the most micro-batches in flight. The last stage has the LM head.
    """
    is_last = layout.pipeline == 1 or not is_first
    parameters = _rank_parameters(shape, layout)
    is_fsdp = layout.backend == "fsdp"
    kept = (_fsdp if is_fsdp else _megatron)(shape, layout, parameters, precision)
    if is_fsdp and gather_once and layout.gpus > 1 and layout.offload != "all":
        kept |= {"compute_weights": precision.compute * parameters, "gradients": _SINGLE * parameters}
    activations = _activations(shape, layout, precision, _in_flight(layout, micro_batches, is_first=is_first))
    if is_fsdp and micro_batches == 1 and layout.gpus == 1:  # gradients replace activations
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
    """Return the memory of fsdp with a frozen model in compute_dtype and trained adapters."""
    adapters = shape.adapter_parameters(rank)
    layer = shape.dense_layer_parameters + shape.expert_layer_parameters
    unsharded = shape.parameters if gather_once else 2 * layer + shape.vocabulary_parameters
    is_offloaded = layout.offload == "all"
    working = _working(shape, layout, precision)
    kept = precision.compute * shape.parameters + precision.parameter * adapters
    return TrainingMemory(
        weights=0.0 if is_offloaded else kept / layout.shards,
        compute_weights=precision.compute * (unsharded if layout.gpus > 1 or is_offloaded else adapters),
        gradients=_SINGLE * adapters / (1 if gather_once else layout.shards),
        optimizer=2 * precision.parameter * adapters / layout.shards if layout.offload == "off" else 0.0,
        activations=_activations(shape, layout, precision, 1),
        head=0.0,
        working=max(min(_LOGITS_CHUNK, precision.compute * layout.rank_tokens * shape.vocab), working),
        reference=precision.compute * shape.parameters / layout.shards if reference else 0.0,
    )


def _in_flight(layout: Layout, micro_batches: int, *, is_first: bool) -> float:
    """Return the number of micro-batches whose activations a stage holds, a fraction with interleaved stages."""
    if layout.virtual == 1:
        return min(layout.pipeline, micro_batches) if is_first else 1
    later_stages = layout.pipeline - 1 if is_first else 0
    pieces = 2 * later_stages + (layout.virtual - 1) * layout.pipeline + 1
    return min(pieces / layout.virtual, micro_batches)


def _rank_parameters(shape: ModelShape, layout: Layout) -> float:
    """Return the parameters of a rank of the first stage before sharding over data-parallel ranks."""
    layer = shape.dense_layer_parameters / layout.tensor
    layer += shape.expert_layer_parameters / layout.expert
    vocabulary = shape.vocabulary_parameters if layout.pipeline == 1 else shape.embedding_parameters
    return shape.layers / layout.pipeline * layer + vocabulary / layout.tensor


def _fsdp(shape: ModelShape, layout: Layout, parameters: float, precision: Precision) -> dict[str, float]:
    """Return the parts of fsdp, which shards everything over the ranks of a copy and gathers two layers at a time."""
    shard = parameters / layout.shards
    layer = shape.dense_layer_parameters + shape.expert_layer_parameters
    unsharded = 2 * layer + shape.vocabulary_parameters
    is_offloaded = layout.offload == "all"
    local = 0.0 if is_offloaded else shard
    gathered = parameters if layout.gpus == 1 and not is_offloaded else min(parameters, local + unsharded)
    copies = precision.compute * gathered if layout.gpus > 1 or precision.compute != precision.parameter else 0.0
    # The gradients of a layer are unsharded and in float32 while they are summed over ranks.
    summed = _SINGLE * layer if layout.gpus > 1 else precision.compute * layer
    return {
        "weights": precision.parameter * local,
        "compute_weights": copies,
        "gradients": summed + precision.parameter * local,
        "optimizer": 2 * precision.parameter * shard if layout.offload == "off" else 0.0,
    }


def _megatron(shape: ModelShape, layout: Layout, parameters: float, precision: Precision) -> dict[str, float]:
    """Return the parts of megatron, which shards only the optimizer over data-parallel ranks; gradients are float32."""
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
    """Return the features per token that the backward pass of one layer reads."""
    stream: float = 4 * shape.hidden  # before and after the norms of attention and MLP
    attention = 2 * shape.query + 2 * shape.key  # queries, keys, values, output
    if shape.qk_norm:
        attention += shape.query + shape.key  # queries and keys before their norms
    width, copies = (shape.expert_mlp, shape.experts_per_token) if shape.num_experts else (shape.mlp, 1)
    wide = copies * 3 * width  # both halves and their product
    if shape.num_experts:
        wide += copies * shape.hidden  # the token once per expert
    if layout.backend == "megatron":
        # Without compilation the activated half, norms before the rotation and dropout masks are also kept.
        wide += copies * width
        attention += shape.query + shape.key
        stream += 2.5 * shape.hidden
        if layout.context > 1:
            attention += shape.query  # the output of attention before and after the exchange
    return stream + attention + wide


def _selected_features(shape: ModelShape, layout: Layout) -> float:
    """Return the features of a token that one layer keeps with selective checkpointing."""
    if layout.backend == "megatron":  # recomputes the MLP
        width, copies = (shape.expert_mlp, shape.experts_per_token) if shape.num_experts else (shape.mlp, 1)
        again = copies * (4 * width + (shape.hidden if shape.num_experts else 0))
        return _kept_features(shape, layout) - again
    # It keeps the results of attention and of narrow matrix products, and the layer's input.
    return 2 * shape.hidden + 2 * shape.query + 2 * shape.key


def _working(shape: ModelShape, layout: Layout, precision: Precision) -> float:
    """Return the bytes of the gradient inside the MLP, and of one recomputed layer with checkpointing."""
    if layout.backend == "fsdp" and layout.checkpointing in ("full", "sparse") and not shape.num_experts:
        return precision.compute * _working_in_halves(shape, layout.rank_tokens)
    width: float = shape.experts_per_token * shape.expert_mlp if shape.num_experts else shape.mlp
    if layout.checkpointing != "off":
        width += _kept_features(shape, layout)
    return precision.compute * layout.rank_tokens * width / layout.tensor


def _working_in_halves(shape: ModelShape, tokens: int) -> float:
    """Return the numbers held while `activation_checkpointing` recomputes attention, or a tile of the MLP."""
    kept = 5 * shape.hidden  # the input before and after its norm, the value between the halves, and both gradients
    kept += 2 * shape.query + 2 * shape.key
    if shape.qk_norm:
        kept += shape.query + shape.key
    attention = 2 * shape.query + 2 * shape.key  # gradients
    attention += 2 * shape.query  # the kernel sums gradients of queries in float32
    mlp = 2 * shape.hidden + 4 * shape.mlp
    return tokens * kept + max(tokens * attention, min(tokens, _TILE) * mlp)
