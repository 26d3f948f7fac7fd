"""The model of the `hf` engine: load it, replace its attention, and copy new weights."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentloop.engines.hf.attention import NAME, DecodeRows, PromptChunks, SlotStep, slot_attention
from agentloop.engines.hf.cache import SlotCache
from agentloop.engines.hf.images import VisionStep
from agentloop.engines.hf.states import SlotStates, replace_forward
from agentloop.errors import EngineError, UserError
from agentloop.vision.loading import load_language_model, recurrent_modules, tower_of
from agentloop.vision.tower import embedded

_PROBES = (8, 11)
"""Lengths of the two sequences on which slot attention is compared with the model's own."""
_TOLERANCE = 1e-3
"""Largest accepted difference, relative to the largest logit, in float32."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model."""

    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int


def load_model(model: str | Path | torch.nn.Module, device: torch.device, dtype: torch.dtype) -> Any:
    """Load a model from a folder, or copy a module, and replace its attention by slot attention.

    Raises `UserError` if the folder or the kind of model is unusable.
    """
    from transformers import AttentionInterface

    if isinstance(model, torch.nn.Module):
        own = copy.deepcopy(model).to(device=device, dtype=dtype)
    else:
        folder = os.fspath(model)
        try:
            own = load_language_model(folder, dtype=dtype, attention="eager")
            own = torch.nn.Module.to(own, device)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise UserError(
                f"The hf engine cannot load a model from {folder!r}: {error} Set a folder with config.json and "
                "safetensors, as `save_pretrained` writes it, or the name of a downloaded model."
            ) from error
    own.eval().requires_grad_(False)
    AttentionInterface.register(NAME, slot_attention)
    _use_slots(own, device)
    return own


def shape_of(model: Any) -> ModelShape:
    """Read the sizes of a model from its config."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    return ModelShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
    )


def states_of(model: Any) -> SlotStates | None:
    """Return empty states for the recurrent layers of a model; None if it has no such layers."""
    return SlotStates(model.config.get_text_config()) if recurrent_modules(model) else None


def forward(
    model: Any, ids: torch.Tensor, step: SlotStep, keep: torch.Tensor, vision: VisionStep | None = None
) -> torch.Tensor:
    """Return logits [len(keep), vocabulary] after the tokens at the indices `keep` of ids [tokens]."""
    if vision is not None:
        return _forward_with_images(model, ids, step, keep, vision)
    with nullcontext() if step.cache.states is None else step.cache.states.reading(step.rows, step.positions):
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


def _use_slots(model: Any, device: torch.device) -> None:
    """Switch the model to slot attention and check that its logits stay the same."""
    name = type(model).__name__
    hint = "Use the vllm engine for it."
    try:
        shape = shape_of(model)
        cache = SlotCache(
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            slots=2,
            max_len=max(_PROBES),
            dtype=torch.float32,
            device=device,
            states=states_of(model),
        )
        ids = [torch.arange(count, device=device) % shape.vocabulary for count in _PROBES]
        with torch.inference_mode(), _in_float32(model):
            expected = torch.cat([model(input_ids=part[None], use_cache=False).logits[0] for part in ids])
            recurrent = recurrent_modules(model)
            for module in recurrent:
                replace_forward(module)
            model.set_attn_implementation(NAME if tower_of(model) is None else {"text_config": NAME})
            logits = _probe(model, cache, ids)
    except (AttributeError, TypeError, NotImplementedError, RuntimeError, ValueError, LookupError) as error:
        raise UserError(f"The hf engine cannot run {name}: {type(error).__name__}: {error}. {hint}") from error
    if not recurrent and not all(layer.any() for layer in cache.kv):
        raise UserError(
            f"The hf engine cannot run {name}: its attention does not use transformers' AttentionInterface. {hint}"
        )
    scale = float(expected.abs().max()) + 1e-6
    if not float((logits - expected).abs().max()) <= _TOLERANCE * scale:
        raise UserError(
            f"The hf engine cannot run {name}: its logits change when two sequences are computed together in two "
            f"steps, for example because layers keep their own state. {hint}"
        )


def _probe(model: Any, cache: SlotCache, ids: list[torch.Tensor]) -> torch.Tensor:
    """Return the logits of two sequences computed together in two steps.

    The first step has a prompt of each, the second has one token of one and the rest of the other. This works only if
    the cache holds all state that the model keeps between steps.
    """
    (first, second), (whole, more) = ids, _PROBES
    decoded, begun = whole - 1, more // 2
    for slot, count in enumerate(_PROBES):
        cache.reserve(slot, count)
    both = np.arange(2)
    chunk = PromptChunks(cache, both, np.zeros(2, np.int64), np.array([decoded, begun]), offset=0)
    positions = np.concatenate([np.arange(decoded), np.arange(begun)])
    step = SlotStep(cache, np.repeat(both, [decoded, begun]), positions, None, [chunk])
    row = torch.cat([first[:decoded], second[:begun]])
    prompts = forward(model, row, step, torch.arange(len(row), device=row.device))
    rest = more - begun
    chunk = PromptChunks(cache, both[1:], np.array([begun]), np.array([rest]), offset=1)
    positions = np.concatenate([[decoded], np.arange(begun, more)])
    step = SlotStep(cache, np.repeat(both, [1, rest]), positions, DecodeRows(cache, both[:1], positions[:1]), [chunk])
    row = torch.cat([first[decoded:], second[begun:]])
    later = forward(model, row, step, torch.arange(len(row), device=row.device))
    return torch.cat([prompts[:decoded], later[:1], prompts[decoded:], later[1:]])


@contextmanager
def _in_float32(model: torch.nn.Module) -> Iterator[None]:
    """Compute in float32, because rounding to bfloat16 would hide differences; restore the parameters at the end."""
    tensors = [*model.parameters(), *model.buffers()]
    kept = [(tensor, tensor.data) for tensor in tensors if tensor.dtype in (torch.bfloat16, torch.float16)]
    for tensor, data in kept:
        tensor.data = data.float()
    try:
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data


def copy_weights(model: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy all weights into the model, or none. A tied weight may have any or all of its names.

    Raises `EngineError` for unknown weights, missing weights and wrong shapes.
    """
    weights = list(weights)
    own = {**dict(model.named_parameters(remove_duplicate=False)), **_persistent_buffers(model)}
    unknown = [name for name, _ in weights if name not in own]
    if unknown:
        raise EngineError(f"new weights have names that the model does not have: {_some(unknown)}")
    shapes = [
        f"{name} {tuple(tensor.shape)} instead of {tuple(own[name].shape)}"
        for name, tensor in weights
        if tensor.shape != own[name].shape
    ]
    if shapes:
        raise EngineError(f"new weights have shapes that differ from the model: {_some(shapes)}")
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
