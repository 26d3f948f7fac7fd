"""Load new weights into a model whose linear layers are in FP8: repeat recorded copies, and round each layer again.

vLLM's own reload calls every loader of every layer for each update, which stops sampling for a second or more. Here the
loaders run once, into parameters on the meta device. An update copies the recorded parts of one layer into a scratch
matrix, and vLLM's method for this layer rounds it into the memory that CUDA graphs use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from agentloop.weights.copies import is_as_loaded, recorded

if TYPE_CHECKING:
    from agentloop.weights.shelf import MappedWeights

FP8_METHOD = "Fp8PtpcOnlineLinearMethod"
"""vLLM's method of linear layers with one scale for each row of a weight."""
_RELOAD = "vllm.model_executor.model_loader.reload"
_IS_ROUNDED = "_already_called_process_weights_after_loading"

_Copy = tuple[Tensor, Tensor]
"""Target and source."""


def rounded_copies(
    model: nn.Module, weights: MappedWeights, named: Iterable[tuple[str, Tensor]]
) -> Callable[[], None] | None:
    """Return a function that loads `weights` into `model` from their memory; `named` has their names in checkpoints.

    Returns None unless all layers of the model are kept as loaded, or are linear layers in FP8.
    """
    layers = [module for module in model.modules() if _method_of(module) == FP8_METHOD]
    if not layers or not is_as_loaded(model, others=(FP8_METHOD,)):
        return None
    with ExitStack() as stack:
        staged = [stack.enter_context(_as_loaded(layer)) for layer in layers]
        copies = recorded(model, weights, named)
    if copies is None:
        return None
    plain = [copy for copy in copies if not copy[0].is_meta]
    parts = {id(parameter): [c for c in copies if _is_part(c[0], parameter)] for parameter in staged}

    def load() -> None:
        for target, source in plain:
            target.copy_(source)
        for layer, parameter in zip(layers, staged, strict=True):
            _round(layer, parameter, parts[id(parameter)])

    return load


def _method_of(module: nn.Module) -> str:
    return type(getattr(module, "quant_method", None)).__name__


@contextmanager
def _as_loaded(layer: nn.Module) -> Iterator[Tensor]:
    """Give a layer the parameter on the meta device that its loader fills, within the context."""
    layerwise: Any = importlib.import_module(f"{_RELOAD}.layerwise")
    meta: Any = importlib.import_module(f"{_RELOAD}.meta")
    sanitize: Any = importlib.import_module(f"{_RELOAD}.sanitize")
    parameters, _ = layerwise.get_layerwise_info(layer).restore_metadata
    parameter = sanitize.restore_layer_refs(meta.to_meta_tensor(parameters["weight"]), layer)
    parameter.weight_loader = layerwise._get_original_loader(parameter)
    rounded = layer._parameters["weight"]
    layer._parameters["weight"] = parameter
    try:
        yield parameter
    finally:
        layer._parameters["weight"] = rounded


def _is_part(target: Tensor, parameter: Tensor) -> bool:
    return target.is_meta and target.untyped_storage()._cdata == parameter.untyped_storage()._cdata


def _round(layer: nn.Module, parameter: Tensor, parts: Sequence[_Copy]) -> None:
    """Fill a matrix like `parameter` with `parts`, and let the layer round it into the memory of its parameters."""
    device = parts[0][1].device
    scratch = torch.empty_strided(parameter.size(), parameter.stride(), dtype=parameter.dtype, device=device)
    for target, source in parts:
        scratch.as_strided(target.size(), target.stride(), target.storage_offset()).copy_(source)
    kept = dict(layer._parameters)
    layer._parameters["weight"] = nn.Parameter(scratch, requires_grad=False)
    vars(layer).pop(_IS_ROUNDED, None)
    layer.quant_method.process_weights_after_loading(layer)  # type: ignore[operator,union-attr]
    for name, tensor in kept.items():
        new = layer._parameters[name]
        if tensor is not None and new is not tensor:
            assert new is not None
            assert new.shape == tensor.shape
            tensor.data.copy_(new.data)
            layer._parameters[name] = tensor
