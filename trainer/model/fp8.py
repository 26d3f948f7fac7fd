"""Products of linear layers in 8-bit floating point (FP8, arXiv 2209.05433), with scales from the current values.

Weights, activations and their gradients keep their precision. A product rounds both of its matrices to 8 bits, sums
in float32 and returns bfloat16. Forward and backward of a layer are three products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agentloop.config.learner import Fp8Name
from agentloop.errors import UserError
from agentloop.trainer.model.lora import ROUTER, LoraLinear, Product

_FORWARD, _WIDE = torch.float8_e4m3fn, torch.float8_e5m2
_MULTIPLE = 16
"""Matrix units need dimensions that are multiples of this."""
_CAPABILITY = (8, 9)
"""CUDA capability of the first GPUs that have FP8: Ada, then Hopper."""


def check(device: torch.device) -> None:
    """Raise `UserError` if the device is a GPU that cannot multiply in FP8."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _CAPABILITY:
        raise UserError(
            f"learner.fp8 is set, but {torch.cuda.get_device_name(device)} does not multiply in FP8. Use a GPU of Ada, "
            "Hopper or later, or set learner.fp8=off."
        )


def convert(model: nn.Module, layers: Sequence[nn.Module], scales: Fp8Name) -> None:
    """Let the linear layers inside `layers` multiply in FP8, those with adapters too.

    Routers and experts stay as they are, and so do layers with a dimension that is not a multiple of 16. Raises
    `UserError` if no layer is left.
    """
    inside = {id(module) for layer in layers for module in layer.modules()}
    product = _by_row if scales == "row" else _by_tensor
    converted = 0
    for name, module in list(model.named_modules()):
        path, _, kind = name.rpartition(".")
        if id(module) not in inside or kind == ROUTER or not _fits(module):
            continue
        if isinstance(module, LoraLinear):
            module.product = product
        else:
            setattr(model.get_submodule(path), kind, Fp8Linear(module, product))
        converted += 1
    if not converted:
        raise UserError(
            f"learner.fp8 is {scales}, but no linear layer of this model has dimensions that are multiples of "
            f"{_MULTIPLE}. Set learner.fp8=off."
        )


def _fits(module: nn.Module) -> bool:
    if type(module) is not nn.Linear and not isinstance(module, LoraLinear):
        return False
    return all(size % _MULTIPLE == 0 for size in module.weight.shape)


class Fp8Linear(nn.Module):
    """A linear layer with the parameters of another one, whose products are those of `product`."""

    def __init__(self, linear: Any, product: Product) -> None:
        super().__init__()
        self.weight: nn.Parameter = linear.weight
        self.bias: nn.Parameter | None = linear.bias
        self.product = product

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        return self.product(hidden, self.weight, self.bias)


def _by_row(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return linear(hidden, weight, bias, by_row=True)


def _by_tensor(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return linear(hidden, weight, bias, by_row=False)


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None, *, by_row: bool) -> Tensor:
    """Return hidden [..., in] @ weight [out, in]^T + bias, in FP8 if `hidden` is bfloat16.

    Each row of a matrix has a scale of its own, or, without `by_row`, the whole matrix has one. Only checks of the
    model at load have another precision.
    """
    if hidden.dtype != torch.bfloat16:
        return F.linear(hidden, weight, bias)
    rows = hidden.reshape(-1, hidden.shape[-1])
    # Gradients of weights sum over rows, whose number must be a multiple, too.
    padded = F.pad(rows, (0, 0, 0, -len(rows) % _MULTIPLE))
    function = _RowScales if by_row else _TensorScales
    out: Tensor = function.apply(padded, weight)
    out = out[: len(rows)].reshape(*hidden.shape[:-1], -1)
    return out if bias is None else out + bias


class _TensorScales(torch.autograd.Function):
    """The product with one scale for a matrix: each matrix is rounded once and then transposed.

    Gradients are in e5m2, which has a wider range. The backward keeps the input in 8 bits.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        left, left_scale = _rounded(rows)
        right, right_scale = _rounded(weight)
        ctx.save_for_backward(left, left_scale, weight)
        return _product(left, right, left_scale, right_scale, fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, row_scale, weight = ctx.saved_tensors
        grad, scale = _rounded(grads[0], dtype=_WIDE)
        of_rows = of_weight = None
        if ctx.needs_input_grad[0]:
            right, right_scale = _rounded(weight)
            of_rows = _product(grad, _transposed(right), scale, right_scale)
        if ctx.needs_input_grad[1]:
            of_weight = _product(_transposed(grad), _transposed(rows), scale, row_scale)
        return of_rows, of_weight


class _RowScales(torch.autograd.Function):
    """The product with one scale for each row of a matrix, so each product rounds its own two matrices."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(*_rounded_pair(rows, weight), fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        of_rows = of_weight = None
        if ctx.needs_input_grad[0]:
            of_rows = _product(*_rounded_pair(grads[0], _transposed(weight)))
        if ctx.needs_input_grad[1]:
            of_weight = _product(*_rounded_pair(_transposed(grads[0]), _transposed(rows)))
        return of_rows, of_weight


def _product(left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, *, fast: bool = False) -> Tensor:
    """Return left [m, k] @ right [n, k]^T, both in FP8. `fast` sums with fewer bits, which the forward can afford."""
    return torch._scaled_mm(left, right.t(), left_scale, right_scale.t(), out_dtype=torch.bfloat16, use_fast_accum=fast)


def _rounded_pair(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (left, left_scale), (right, right_scale) = _rounded(left, by_row=True), _rounded(right, by_row=True)
    return left, right, left_scale, right_scale


def _rounded(matrix: Tensor, *, dtype: torch.dtype = _FORWARD, by_row: bool = False) -> tuple[Tensor, Tensor]:
    """Return a matrix in FP8, and its scales: float32 [rows, 1] or []. The largest value becomes that of the dtype."""
    # Literals: torch would compile floats of a module as inputs of the graph, which fails in several such functions.
    largest = matrix.abs().amax(1, keepdim=True) if by_row else matrix.abs().amax()
    scale = (largest.float() / (448.0 if dtype == _FORWARD else 57344.0)).clamp(min=1e-12)
    return (matrix.float() / scale).to(dtype), scale


def _transposed(matrix: Tensor) -> Tensor:
    return matrix.t().contiguous()
