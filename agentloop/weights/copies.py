"""Record the tensor copies by which vLLM or SGLang loads weights into a model, and repeat them for later updates.

Their loaders look up, split and fuse each weight in Python at every load, which stops sampling for tens of
milliseconds. If loading consists only of copies, repeating the copies is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    import torch

    from agentloop.weights.shelf import MappedWeights

_PLAIN_METHODS = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
_PLAIN_LAYERS = ("Attention", "MMEncoderAttention")
"""Layers whose processing after loading does not depend on weights."""


def is_as_loaded(model: torch.nn.Module, *, others: Collection[str] = ()) -> bool:
    """Return whether the model keeps its weights as loaded, not quantised, fused, packed or absorbed.

    Layers whose quantisation method is one of `others` may do something else.
    """
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None and type(method).__name__ not in (*_PLAIN_METHODS, *others):
            return False
        if hasattr(module, "process_weights_after_loading") and type(module).__name__ not in _PLAIN_LAYERS:
            return False
    return True


def copies_of(
    model: torch.nn.Module, weights: MappedWeights, named: Iterable[tuple[str, torch.Tensor]] | None = None
) -> Callable[[], None] | None:
    """Load `weights`; return a function that repeats this from the same memory into the same parameters.

    Returns None if loading does more than copy.
    """
    copies = recorded(model, weights, weights if named is None else named)
    if copies is None:
        return None

    def copy() -> None:
        for target, source in copies:
            target.copy_(source)

    return copy


def recorded(
    model: torch.nn.Module, weights: MappedWeights, named: Iterable[tuple[str, torch.Tensor]]
) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Load `weights`, which `named` yields with their names in checkpoints; return all copies, as (target, source).

    Returns None if loading does more than copy, or does not copy all weights.
    """
    recorder = _Recorder()
    with recorder:
        model.load_weights(iter(named))  # type: ignore[operator]
    memory = {tensor.untyped_storage().data_ptr() for _, tensor in weights}
    copied = {source.untyped_storage().data_ptr() for _, source in recorder.copies}
    if recorder.others or not copied <= memory:
        return None
    starts = {source.data_ptr() for _, source in recorder.copies}
    # With several ranks each copies its part of a weight, which may begin inside the weight.
    spans = [(at := tensor.data_ptr(), at + tensor.nbytes) for name, tensor in weights if name != "lm_head.weight"]
    if not all(any(low <= start < high for start in starts) for low, high in spans):
        return None
    return recorder.copies


class _Recorder(TorchDispatchMode):
    """Records the operands of all copies, and the other operations that write."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.others: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import torch

        if func is torch.ops.aten.copy_.default:
            self.copies.append((args[0], args[1]))
        elif func._schema.is_mutable and func not in (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default):
            self.others.add(str(func))  # fill_ and zero_ write padding, which stays
        return func(*args, **(kwargs or {}))
