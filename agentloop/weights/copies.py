"""Record the copies that loading weights into a model of vLLM or SGLang consists of, and repeat them later.

Their loaders look up, split and fuse weight by weight, in Python, at every load. That takes tens of milliseconds in
which nothing is sampled. If loading does nothing but copy, repeating the copies is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    import torch

    from agentloop.weights.shelf import MappedWeights

_PLAIN_METHODS = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
_PLAIN_LAYERS = ("Attention", "MMEncoderAttention")
"""Layers whose work after loading depends on no weight."""


def is_as_loaded(model: torch.nn.Module) -> bool:
    """Return whether the model keeps its weights as loaded: not quantised, fused, packed or absorbed."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None and type(method).__name__ not in _PLAIN_METHODS:
            return False
        if hasattr(module, "process_weights_after_loading") and type(module).__name__ not in _PLAIN_LAYERS:
            return False
    return True


def copies_of(model: torch.nn.Module, weights: MappedWeights) -> Callable[[], None] | None:
    """Load `weights`, and return a function that loads them again from the same memory into the same parameters.

    Returns None if loading does more than copying.
    """
    recorder = _Recorder()
    with recorder:
        model.load_weights(iter(weights))  # type: ignore[operator]
    memory = {tensor.untyped_storage().data_ptr() for _, tensor in weights}
    copied = {source.untyped_storage().data_ptr() for _, source in recorder.copies}
    if recorder.others or not copied <= memory:
        return None
    starts = {source.data_ptr() for _, source in recorder.copies}
    # Each of several ranks copies its part of a weight, which need not begin where the weight does.
    spans = [(at := tensor.data_ptr(), at + tensor.nbytes) for name, tensor in weights if name != "lm_head.weight"]
    if not all(any(low <= start < high for start in starts) for low, high in spans):
        return None

    def copy() -> None:
        for target, source in recorder.copies:
            target.copy_(source)

    return copy


class _Recorder(TorchDispatchMode):
    """Keeps the operands of all copies; notes whether anything else is written."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.others: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import torch

        if func is torch.ops.aten.copy_.default:
            self.copies.append((args[0], args[1]))
        elif func._schema.is_mutable and func not in (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default):
            self.others.add(str(func))  # padding is filled with zeros, which stay
        return func(*args, **(kwargs or {}))
