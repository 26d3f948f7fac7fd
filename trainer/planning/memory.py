"""Memory of one GPU while it trains, in bytes, from the shape of the model and a layout.

The parts are counted, not fitted: what the optimizer keeps for a parameter, which activations the backward of a layer
reads (FlashAttention; fsdp compiled, megatron not), the logits of a chunk. Against measured peaks the sum is within 4 %
on one GPU (`benchmarks/results/train_step_*`) and 8 % on two (`megatron_step_*`), but for a model whose activations are
all computed again: there it was 1.3 GiB too high (`tests/trainer/test_plan_memory.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentloop.trainer.planning.layouts import Layout
from agentloop.trainer.planning.model_shape import ModelShape

_LOGITS_CHUNK = 832 * 2**20
"""As in `head_chunks`."""
_WORKSPACE = 512 * 2**20
"""Of the matrix library, the collectives and the allocator's gaps."""
_HALF, _SINGLE = 2, 4


@dataclass(slots=True, frozen=True, kw_only=True)
class TrainingMemory:
    """Bytes of one rank at its peak, which is at the end of the last micro-batch's forward."""

    weights: float
    """As the optimizer changes them."""
    compute_weights: float
    """The copy in compute_dtype that matrix products read."""
    gradients: float
    optimizer: float
    activations: float
    """Kept for the backward, of all micro-batches in flight."""
    working: float
    """Of the layer that is being computed."""
    head: float
    """Logits of a chunk, and the gradient of the head."""
    workspace: float = _WORKSPACE
    reference: float = 0.0
    """Weights of a reference model."""

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(slots=True, frozen=True, kw_only=True)
class Precision:
    """Bytes of a number."""

    parameter: int = _SINGLE
    compute: int = _HALF


def training_memory(
    shape: ModelShape,
    layout: Layout,
    *,
    precision: Precision = Precision(),
    micro_batches: int = 2,
    reference: bool = False,
    gather_once: bool = False,
) -> TrainingMemory:
    """`micro_batches` of a rank and update: while the first is computed there are no gradients yet. `gather_once` as of
    `LearnerConfig`."""
    parameters = _rank_parameters(shape, layout)
    activations = _activations(shape, layout, precision, micro_batches)
    head = shape.embedding_parameters / layout.tensor
    is_fsdp = layout.backend == "fsdp"
    kept = (_fsdp if is_fsdp else _megatron)(shape, layout, parameters, precision)
    if is_fsdp and gather_once and layout.gpus > 1 and layout.offload != "all":
        kept |= {"compute_weights": precision.compute * parameters, "gradients": _SINGLE * parameters}
    if is_fsdp and micro_batches == 1 and layout.gpus == 1:
        kept["gradients"] = 0.0
    return TrainingMemory(
        **kept,
        activations=activations,
        working=_working(shape, layout, precision),
        head=min(_LOGITS_CHUNK, precision.compute * layout.rank_tokens * shape.vocab / layout.tensor)
        + precision.compute * head,
        reference=precision.compute * parameters / (layout.gpus if is_fsdp else 1) if reference else 0.0,
    )


def _rank_parameters(shape: ModelShape, layout: Layout) -> float:
    """Of one rank before any sharding over data-parallel ranks; of the first stage, which has the embedding."""
    layer = shape.dense_layer_parameters / layout.tensor
    layer += shape.expert_layer_parameters / layout.expert
    vocabulary = shape.vocabulary_parameters if layout.pipeline == 1 else shape.embedding_parameters
    return shape.layers / layout.pipeline * layer + vocabulary / layout.tensor


def _fsdp(shape: ModelShape, layout: Layout, parameters: float, precision: Precision) -> dict[str, float]:
    """Everything is sharded over all ranks; two layers at a time are whole."""
    shard = parameters / layout.gpus
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


def _activations(shape: ModelShape, layout: Layout, precision: Precision, micro_batches: int) -> float:
    layers = shape.layers / layout.pipeline
    in_flight = min(layout.pipeline, micro_batches)
    tokens = layout.rank_tokens * in_flight
    features = _kept_features(shape, layout)
    if layout.checkpointing == "full":
        return precision.compute * tokens * layers * shape.hidden / layout.tensor
    statistics = _SINGLE * shape.heads / layout.tensor
    return tokens * layers * (precision.compute * features / layout.tensor + statistics)


def _kept_features(shape: ModelShape, layout: Layout) -> float:
    """Of a token and layer: what the backward of the layer reads."""
    stream = 2 * shape.hidden  # before attention, before the MLP
    attention = 2 * shape.query + 2 * shape.key  # queries, keys, values, output
    if shape.qk_norm:
        attention += shape.query + shape.key
    if layout.checkpointing == "selective":
        # Results of attention and of the narrow matrix products, and the layer's input.
        return 3 * shape.hidden + 2 * shape.query + 2 * shape.key
    wide = shape.experts_per_token * (2 * shape.expert_mlp + shape.hidden) if shape.num_experts else 2 * shape.mlp
    if layout.backend == "megatron":
        # Layers are not compiled: normed inputs, the activated half and the product of the MLP are kept too.
        stream += 2 * shape.hidden
        wide += wide
        attention += shape.query + shape.key
    return stream + attention + wide


def _working(shape: ModelShape, layout: Layout, precision: Precision) -> float:
    """Gradients inside the MLP; with checkpointing also what one layer keeps."""
    width = shape.experts_per_token * shape.expert_mlp if shape.num_experts else shape.mlp
    working = 4 * width / layout.tensor
    if layout.checkpointing != "off":
        plain = Layout(backend=layout.backend)
        working += _kept_features(shape, plain) / layout.tensor
    return precision.compute * layout.rank_tokens * working
