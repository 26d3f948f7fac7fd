"""The conditions under which a model is probed: float32, plain modules, no trace left in the model or in random states.

Rounding would hide what a probe looks for. In bfloat16 log-probabilities are off by 0.05 whatever the model does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def probing(model: nn.Module, layers: Iterable[nn.Module], device: torch.device) -> Iterator[None]:
    """Run `model` as transformers wrote it and in float32. Everything is as it was afterwards, bit for bit."""
    layers, was_training = list(layers), model.training
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(_without_tf32(device))
        stack.enter_context(_plain_forwards(layers))
        # A GPU casts a layer in no time and has no room for the whole model again; a host is the other way round.
        stack.enter_context(_in_float32(model, layers if device.type == "cuda" else []))
        stack.enter_context(_short_windows(model))
        stack.callback(model.train, was_training)
        yield


@contextmanager
def attention_of(model: nn.Module, name: str) -> Iterator[None]:
    """Let the decoder take its attention by `name` from transformers. A vision tower keeps its own."""
    own = _configs(model)
    kept = [(config, config._attn_implementation) for config in own]
    for config in own:
        # The public setter would change the configurations below this one as well, that of the tower among them.
        config._attn_implementation_internal = name
    try:
        yield
    finally:
        for config, value in kept:
            config._attn_implementation_internal = value


def _configs(model: Any) -> list[Any]:
    text = model.config.get_text_config()
    found = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    found[id(text)] = text
    name = text._attn_implementation
    return [config for config in found.values() if getattr(config, "_attn_implementation", None) == name]


@contextmanager
def _without_tf32(device: torch.device) -> Iterator[None]:
    """Its products have ten bits."""
    if device.type != "cuda":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions


_WINDOWS = {
    "sliding_window": 6,
    "attention_chunk_size": 6,
    "index_topk": 6,
    "index_block_size": 4,
    "index_topk_blocks": 1,
}
"""In tokens, fewer than a probe has. What a layer sees of a long sequence, and its attention is not told, would not
differ in a short one."""


@contextmanager
def _short_windows(model: nn.Module) -> Iterator[None]:
    """Let layers that see the nearest tokens only see very few of them."""
    kept = []
    for owner in {id(vars(item)): item for item in [*model.modules(), *_configs(model)]}.values():
        for name, short in _WINDOWS.items():
            value = vars(owner).get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > short:
                kept.append((owner, name, value))
    for owner, name, _ in kept:
        vars(owner)[name] = _WINDOWS[name]
    try:
        yield
    finally:
        for owner, name, value in kept:
            vars(owner)[name] = value


@contextmanager
def _plain_forwards(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Without compilation and checkpointing (see `layers.prepare`): a probe would be compiled for nothing."""
    prepared = {layer: layer.__dict__.pop("forward") for layer in layers if "forward" in layer.__dict__}
    try:
        yield
    finally:
        for layer, forward in prepared.items():
            layer.forward = forward


@contextmanager
def _in_float32(model: nn.Module, layers: list[nn.Module]) -> Iterator[None]:
    """Cast the parameters of `layers` one by one, each while it runs, and all others at once."""
    inside = {id(tensor) for layer in layers for tensor in _rounded(layer)}
    kept: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def widen(layer: nn.Module, _: Any) -> None:
        kept[layer] = _widen(_rounded(layer))

    def narrow(layer: nn.Module, *_: Any) -> None:
        _give_back(kept.pop(layer))

    handles = [layer.register_forward_pre_hook(widen) for layer in layers]
    handles += [layer.register_forward_hook(narrow) for layer in layers]
    outside = _widen(tensor for tensor in _rounded(model) if id(tensor) not in inside)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for tensors in [*kept.values(), outside]:  # some are left in `kept` where a forward raised
            _give_back(tensors)


def _rounded(module: nn.Module) -> list[Tensor]:
    tensors = [*module.parameters(), *module.buffers()]
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.dtype != torch.float32]


def _widen(tensors: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    kept = [(tensor, tensor.data) for tensor in tensors]
    for tensor, data in kept:
        tensor.data = data.float()
    return kept


def _give_back(kept: list[tuple[Tensor, Tensor]]) -> None:
    for tensor, data in kept:
        tensor.data = data
