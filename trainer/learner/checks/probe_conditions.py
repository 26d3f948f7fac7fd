"""Conditions for probing a model: float32, plain modules, and no change left in the model or in random states.

In bfloat16, rounding alone changes log-probabilities by 0.05, which would hide the errors that a probe looks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentloop.trainer.model.layers import run_plain


@contextmanager
def probing(model: nn.Module, layers: Iterable[nn.Module], device: torch.device) -> Iterator[None]:
    """Let `model` run with the code of transformers and in float32; restore everything afterwards, bit for bit."""
    layers, was_training = list(layers), model.training
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(_without_tf32(device))
        stack.enter_context(_plain_forwards(layers))
        # A GPU casts layers fast but lacks memory for the model twice; a host has the memory but casts slowly.
        stack.enter_context(_in_float32(model, layers if device.type == "cuda" else []))
        stack.enter_context(_short_windows(model))
        stack.callback(model.train, was_training)
        yield


@contextmanager
def attention_of(model: nn.Module, name: str) -> Iterator[None]:
    """Let the decoder use the attention that transformers knows by `name`; a vision tower keeps its own."""
    own = _configs(model)
    kept = [(config, config._attn_implementation) for config in own]
    for config in own:
        # The public setter would also change the configurations inside this one, such as that of the tower.
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
    """Disable TF32, whose products have a mantissa of ten bits."""
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
"""Window sizes in tokens, smaller than a probe. A long window that a layer does not pass to its attention would show no
difference in a short probe."""


@contextmanager
def _short_windows(model: nn.Module) -> Iterator[None]:
    """Shorten the windows of layers with a local attention."""
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
    """Undo compilation and activation checkpointing of layers: compiling a probe would waste time."""
    prepared = {layer: layer.__dict__["forward"] for layer in layers if "forward" in layer.__dict__}
    for layer in prepared:
        layer.forward = partial(run_plain, layer)
    try:
        yield
    finally:
        for layer, forward in prepared.items():
            layer.forward = forward


@contextmanager
def _in_float32(model: nn.Module, layers: list[nn.Module]) -> Iterator[None]:
    """Cast the tensors of each of `layers` while it runs, and all others at once."""
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
        for tensors in [*kept.values(), outside]:  # some are left in `kept` if a forward raised
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
