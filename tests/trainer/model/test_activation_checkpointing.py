"""Checkpointed layers have the outputs and gradients of layers that keep all intermediate values."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import (
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
)
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextConfig, Qwen2VLTextModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextConfig, Qwen3VLTextModel

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.model import layers
from agentloop.trainer.model.activation_checkpointing import can_recompute, prepare

_LAYERS = 5
_TEXT = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
_KINDS = {
    "llama": lambda: LlamaModel(LlamaConfig(**_TEXT)),
    "mistral": lambda: MistralModel(MistralConfig(**_TEXT, sliding_window=None)),
    "qwen2": lambda: Qwen2Model(Qwen2Config(**_TEXT)),
    "qwen3": lambda: Qwen3Model(Qwen3Config(**_TEXT)),
    "qwen2_vl": lambda: Qwen2VLTextModel(Qwen2VLTextConfig(**_TEXT, **_MROPE)),
    "qwen2_5_vl": lambda: Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**_TEXT, **_MROPE)),
    "qwen3_vl": lambda: Qwen3VLTextModel(Qwen3VLTextConfig(**_TEXT, **_MROPE)),
}


def _prepare(model: Any, every: int) -> None:
    """Let the backward recompute layers, whose rows of 17 tokens have three tiles."""
    prepare(model.layers, every, compiled=False, tile=6)


def _model(kind: str) -> Any:
    torch.manual_seed(0)
    return _KINDS[kind]().double().train()


def _results(model: Any, embeds: Tensor) -> list[Tensor]:
    """Return hidden states, and the gradients of parameters and input."""
    embeds = embeds.clone().requires_grad_()
    hidden = model(inputs_embeds=embeds, use_cache=False).last_hidden_state
    hidden.square().sum().backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [hidden.detach(), embeds.grad, *grads]


def _embeds() -> Tensor:
    return torch.randn(1, 17, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", _KINDS)
def test_checkpointing_does_not_change_outputs_or_gradients(kind: str, every: int):
    plain, again = _model(kind), _model(kind)
    assert can_recompute(again.layers)
    _prepare(again, every)
    want, got = _results(plain, _embeds()), _results(again, _embeds())
    assert len(want) == len(got) > 2 + 9 * _LAYERS
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("every", "forwards"), [(1, _LAYERS), (3, _LAYERS + 2 + 1)])
def test_layers_are_recomputed_at_most_as_often_as_needed(every: int, forwards: int):
    model, calls = _model("qwen3"), {"forward": 0, "differentiate": 0}

    def count(*_: Any) -> None:
        calls["differentiate" if torch.is_grad_enabled() else "forward"] += 1

    for layer in model.layers:
        layer.self_attn.register_forward_pre_hook(count)
    _prepare(model, every)
    _results(model, _embeds())
    assert calls == {"forward": forwards, "differentiate": _LAYERS}


def _watch_inputs(model: Any) -> list[StorageWeakRef]:
    """Return a list that collects a weak reference to the memory of each layer's input."""
    seen: list[StorageWeakRef] = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, args: seen.append(StorageWeakRef(args[0].untyped_storage())))
    return seen


@pytest.mark.parametrize(("every", "kept"), [(1, 5), (3, 2)])
def test_only_segment_inputs_are_kept(every: int, kept: int):
    model = _model("qwen3")
    inputs = _watch_inputs(model)
    _prepare(model, every)
    out = model(inputs_embeds=_embeds(), use_cache=False).last_hidden_state
    assert len(inputs) == _LAYERS
    assert sum(not memory.expired() for memory in inputs) == kept
    out.sum().backward()
    assert all(memory.expired() for memory in inputs[1:])  # the graph of `out` holds the first one


@pytest.mark.parametrize("in_place", [False, True])
def test_features_added_between_layers_are_kept(in_place: bool):
    """Qwen3-VL adds image features to the output of its first layers."""
    results = []
    for every in (None, 4):
        model = _model("qwen3")
        if every is not None:
            _prepare(model, every)
        hidden = _embeds().requires_grad_()
        added = torch.ones(16, dtype=torch.float64, requires_grad=True)
        angles = model.rotary_emb(hidden, torch.arange(17)[None])
        start = hidden
        for layer in model.layers:
            hidden = layer(hidden, attention_mask=None, position_embeddings=angles)
            hidden = hidden.add_(added) if in_place else hidden + added
        hidden.square().sum().backward()
        results.append([hidden.detach(), start.grad, added.grad, *(p.grad for p in model.layers.parameters())])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-10)


def test_layers_above_frozen_embeddings_get_gradients():
    model = _model("qwen3")
    model.embed_tokens.requires_grad_(False)
    _prepare(model, 1)
    model(input_ids=torch.arange(9)[None], use_cache=False).last_hidden_state.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.layers.parameters())


def test_no_grad_forward_keeps_nothing():
    model, plain = _model("qwen3"), _model("qwen3")
    inputs = _watch_inputs(model)
    _prepare(model, 3)
    with torch.no_grad():
        got, want = (each(inputs_embeds=_embeds(), use_cache=False).last_hidden_state for each in (model, plain))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    assert len(inputs) == _LAYERS
    assert all(memory.expired() for memory in inputs)


def test_unsupported_sparse_checkpointing_raises(tiny_qwen3: Any):
    with pytest.raises(UserError, match=r"does not support layers of the class Linear\. Set it to full"):
        layers.prepare([nn.Linear(2, 2)], "sparse", compiled=False)
    model: Path = tiny_qwen3()
    with pytest.raises(UserError, match="gathered once"):
        FsdpLearner(LearnerConfig(model=str(model), device="cpu", checkpointing="sparse", gather_once=False))
    with pytest.raises(ValueError, match="only fsdp has checkpointing=sparse"):
        LearnerConfig(model=str(model), backend="megatron", checkpointing="sparse")
