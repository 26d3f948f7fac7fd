"""The model of the `hf` engine: loading, the check that its attention can be replaced, and new weights."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentloop.engines.hf.attention import NAME, PromptChunks, SlotStep, slot_attention
from agentloop.engines.hf.cache import SlotCache
from agentloop.engines.hf.images import VisionStep
from agentloop.errors import EngineError, UserError
from agentloop.vision.loading import load_language_model, tower_of
from agentloop.vision.tower import embedded

_PROBE = 12
"""Tokens of the forward pass that compares the two kinds of attention."""


@dataclass(frozen=True)
class ModelShape:
    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int


def load_model(model: str | Path | torch.nn.Module, device: torch.device, dtype: torch.dtype) -> Any:
    """A model of our own: a copy of `model`, or loaded from the folder. Its attention is ours.

    Raises `UserError` where the folder, or the kind of model, cannot be used.
    """
    from transformers import AttentionInterface

    if isinstance(model, torch.nn.Module):
        own = copy.deepcopy(model).to(device=device, dtype=dtype)
    else:
        folder = os.fspath(model)
        try:
            own = load_language_model(folder, dtype=dtype, attention="sdpa")
            own = torch.nn.Module.to(own, device)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise UserError(
                f"The hf engine cannot load a model from {folder!r}: {error} Give a folder with config.json and "
                "safetensors as `save_pretrained` writes it, or the name of a model that is downloaded already."
            ) from error
    own.eval().requires_grad_(False)
    AttentionInterface.register(NAME, slot_attention)
    _use_slots(own, device, dtype)
    return own


def shape_of(model: Any) -> ModelShape:
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    return ModelShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
    )


def forward(
    model: Any, ids: torch.Tensor, step: SlotStep, keep: torch.Tensor, vision: VisionStep | None = None
) -> torch.Tensor:
    """ids [tokens] -> logits [kept, vocabulary] behind the tokens of index `keep`."""
    if vision is not None:
        return _forward_with_images(model, ids, step, keep, vision)
    out = model(
        input_ids=ids[None],
        position_ids=step.position_index[None],
        use_cache=False,
        logits_to_keep=keep,
        slot_step=step,
    )
    return out.logits[0]


def _forward_with_images(
    model: Any, ids: torch.Tensor, step: SlotStep, keep: torch.Tensor, vision: VisionStep
) -> torch.Tensor:
    backbone = model.base_model
    if vision.features is None:
        kwargs = {"inputs_embeds": backbone.get_input_embeddings()(ids[None])}
    else:
        kwargs = embedded(backbone, ids[None], vision.features, vision.index)
    out = backbone.language_model(position_ids=vision.positions[:, None], use_cache=False, slot_step=step, **kwargs)
    logits: torch.Tensor = model.get_output_embeddings()(out.last_hidden_state[0, keep])
    return logits


def _use_slots(model: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Switch to slot attention, and make sure that the model computes the same with it."""
    name = type(model).__name__
    hint = "Use the vllm engine for it."
    try:
        shape = shape_of(model)
        ids = torch.arange(_PROBE, device=device) % shape.vocabulary
        cache = SlotCache(
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            slots=1,
            max_len=_PROBE,
            dtype=dtype,
            device=device,
        )
        cache.reserve(0, _PROBE)
        row = np.zeros(1, np.int64)
        chunk = PromptChunks(cache, row, row, row + _PROBE, offset=0)
        step = SlotStep(cache, np.zeros(_PROBE, np.int64), np.arange(_PROBE), None, [chunk])
        with torch.inference_mode():
            expected = model(input_ids=ids[None], use_cache=False).logits[0].float()
            model.set_attn_implementation(NAME if tower_of(model) is None else {"text_config": NAME})
            logits = forward(model, ids, step, torch.arange(_PROBE, device=device)).float()
    except (AttributeError, TypeError, NotImplementedError, RuntimeError, ValueError, IndexError) as error:
        raise UserError(f"The hf engine cannot run {name}: {type(error).__name__}: {error}. {hint}") from error
    if not all(layer.any() for layer in cache.kv):
        raise UserError(f"The hf engine cannot run {name}: it does not take its attention from transformers. {hint}")
    tolerance = 1e-3 if dtype == torch.float32 else 0.1
    scale = float(expected.abs().max()) + 1e-6
    if not float((logits - expected).abs().max()) <= tolerance * scale:
        raise UserError(f"The hf engine cannot run {name}: its attention is not the usual causal one. {hint}")


def copy_weights(model: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """In place; all weights or none. A tied weight may come under one of its names or all.

    Raises `EngineError` naming what is unknown, missing or of another shape.
    """
    weights = list(weights)
    own = {**dict(model.named_parameters(remove_duplicate=False)), **_persistent_buffers(model)}
    unknown = [name for name, _ in weights if name not in own]
    if unknown:
        raise EngineError(f"new weights have names that the model has not: {_some(unknown)}")
    shapes = [
        f"{name} {tuple(tensor.shape)} instead of {tuple(own[name].shape)}"
        for name, tensor in weights
        if tensor.shape != own[name].shape
    ]
    if shapes:
        raise EngineError(f"new weights have other shapes than the model: {_some(shapes)}")
    given = {own[name].data_ptr() for name, _ in weights}
    missing = [name for name, tensor in own.items() if tensor.data_ptr() not in given]
    if missing:
        raise EngineError(f"new weights lack {_some(missing)}")
    with torch.inference_mode():
        for name, tensor in weights:
            own[name].copy_(tensor.detach())


def _persistent_buffers(model: Any) -> dict[str, torch.Tensor]:
    kept = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def _some(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
