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
from agentloop.trainer.model.kernels.fp8_rounding import MULTIPLE, round_to_fp8
from agentloop.trainer.model.lora import ROUTER, LoraLinear, Product

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
            f"{MULTIPLE}. Set learner.fp8=off."
        )


def _fits(module: nn.Module) -> bool:
    if type(module) is not nn.Linear and not isinstance(module, LoraLinear):
        return False
    return all(size % MULTIPLE == 0 for size in module.weight.shape)


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
    is_on = torch.is_grad_enabled()
    needs = is_on and hidden.requires_grad, is_on and weight.requires_grad
    out: Tensor = _Linear.apply(hidden.reshape(-1, hidden.shape[-1]), weight, by_row, *needs)
    out = out.reshape(*hidden.shape[:-1], -1)
    return out if bias is None else out + bias


class _Linear(torch.autograd.Function):
    """The product of rows [tokens, in] with weight [out, in]^T, and the two products of its backward.

    The backward keeps both matrices in 8 bits. With one scale for a matrix, gradients are in e5m2, which has a wider
    range.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, by_row: bool, rows_need_grad: bool, weight_needs_grad: bool
    ) -> Tensor:
        left, rows_transposed, left_scale, rows_scale = round_to_fp8(rows, True, weight_needs_grad, by_row, False)
        right, weight_transposed, right_scale, weight_scale = round_to_fp8(weight, True, rows_need_grad, by_row, False)
        ctx.by_row = by_row
        ctx.save_for_backward(rows_transposed, rows_scale, weight_transposed, weight_scale)
        return _product(left, right, left_scale, right_scale, fast=True)[: rows.shape[0]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        rows, rows_scale, weight, weight_scale = ctx.saved_tensors
        needs = ctx.needs_input_grad[:2]
        grad, transposed, scale, transposed_scale = round_to_fp8(grads[0], *needs, ctx.by_row, not ctx.by_row)
        of_rows = of_weight = None
        if needs[0]:
            of_rows = _product(grad, weight, scale, weight_scale)[: grads[0].shape[0]]
        if needs[1]:
            of_weight = _product(transposed, rows, transposed_scale, rows_scale)
        return of_rows, of_weight, None, None, None


def _product(left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, *, fast: bool = False) -> Tensor:
    """Return left [m, k] @ right [n, k]^T, both in FP8. `fast` sums with fewer bits, which the forward can afford."""
    return torch._scaled_mm(left, right.t(), left_scale, right_scale.t(), out_dtype=torch.bfloat16, use_fast_accum=fast)
