"""Prepare the decoder layers: compilation, and the choice of activations kept for the backward.

All layers of a model have the same code, so one compilation serves all of them. Lengths are dynamic, so it serves all
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from agentloop.config.learner import SPARSE, CheckpointingName
from agentloop.errors import UserError
from agentloop.trainer.model import activation_checkpointing as recomputed
from agentloop.trainer.model.compiling import compile_whole
from agentloop.trainer.model.experts import routing
from agentloop.trainer.model.recurrent import padded


def prepare(
    layers: Sequence[nn.Module], checkpointing: CheckpointingName, *, compiled: bool, padded_batches: bool = False
) -> None:
    """Replace the forward of each layer in place; hooks of the module (such as FSDP's) stay outside it.

    Layers that read `padded_batches` are not compiled: the number and lengths of sequences change their graph. Raises
    `UserError` if sparse checkpointing does not support the layers. A layer that cannot be compiled raises it at
    its first call, too.
    """
    if compiled:
        # What is computed from inputs that are numbers runs on the CPU: inductor then starts a C++ compiler, which is
        # most of the first step of gpt-oss.
        torch._dynamo.config.specialize_float = _share_numbers(layers)
    if checkpointing in ("full", "sparse") and recomputed.can_recompute(layers):
        recomputed.prepare(layers, SPARSE if checkpointing == "sparse" else 1, compiled=compiled)
        return
    if checkpointing == "sparse":
        kinds = ", ".join(sorted({type(layer).__name__ for layer in layers}))
        raise UserError(f"learner.checkpointing=sparse does not support layers of the class {kinds}. Set it to full.")
    run: Callable[..., Any] = run_plain if padded_batches else _plain
    if checkpointing == "selective":
        run = partial(_selective, plain=run_plain) if padded_batches else _selective
    if compiled and not padded_batches:
        # A router notes its choice. torch refuses that under checkpointing unless only the forward does it.
        torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
        run = compile_whole(run)
    if checkpointing == "full":
        run = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
    for layer in layers:
        # The layer is an argument, not part of the function, so one compilation serves all layers.
        layer.forward = partial(run, layer)  # type: ignore[method-assign]


def _share_numbers(layers: Sequence[nn.Module]) -> bool:
    """Whether layers of a class have equal numbers, such as epsilons, so that a graph with constants serves them."""
    seen: dict[tuple[type, str, str], float] = {}
    return all(
        seen.setdefault((type(layer), path, name), value) == value
        for layer in layers
        for path, module in layer.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, float)
    )


def _plain(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if "replayed" in kwargs:  # from `Routing`
        return routing.run_routed(layer, *args, **kwargs)
    return type(layer).forward(layer, *args, **kwargs)


def run_plain(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a layer of transformers unchanged, with a new state for each sequence of the row."""
    with padded.reading(kwargs.get("padded")):
        return _plain(layer, *args, **kwargs)


def _selective(layer: nn.Module, *args: Any, plain: Callable[..., Any] = _plain, **kwargs: Any) -> Any:
    return checkpoint(
        plain, layer, *args, use_reentrant=False, preserve_rng_state=False, context_fn=_contexts, **kwargs
    )


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)


_WIDE = 2
"""Ratio of output to input features above which a matrix product is recomputed.

Keeping its result costs the most and computing it the least. In a decoder layer these are the gate and up projections.
"""


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if op in (torch.ops.agentloop.packed_attention.default, torch.ops.agentloop.recurrence.default):
        return CheckpointPolicy.MUST_SAVE
    if op in (torch.ops.aten.mm.default, torch.ops.aten._scaled_mm.default) and _is_narrow(*args[:2]):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _is_narrow(left: Tensor, right: Tensor) -> bool:
    return right.shape[1] <= _WIDE * left.shape[1]
