"""Low-rank adapters of experts: transformers 5 keeps the weights of all experts of a layer in one parameter.

A parameter W of shape [num_experts, out_features, in_features] gets an adapter for each expert. A token passes those of
its experts as two grouped matrix products, as it passes W itself.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers.integrations.moe import _grouped_linear

from agentloop.experts.routing import is_experts

SUFFIX = "_adapter"
_ROW_BYTES = 16
_WEIGHTS = ("gate_up_proj", "up_proj", "down_proj")


class ExpertsAdapter(nn.Module):
    """The adapters of one parameter of experts, which have no effect before training."""

    def __init__(self, experts: Any, name: str, *, rank: int, alpha: float, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        shape = getattr(experts, name).shape
        self.is_transposed = bool(experts.is_transposed)
        count, out_features, in_features = (shape[0], shape[2], shape[1]) if self.is_transposed else shape
        self.scale = alpha / rank
        self.is_on = True
        bound = 1.0 / math.sqrt(in_features)  # as in nn.Linear and peft
        generator = torch.Generator().manual_seed(seed)
        values = torch.rand(count, rank, in_features, generator=generator, dtype=torch.float32)
        self.lora_a = nn.Parameter(((values * 2 - 1) * bound).to(dtype))
        self.lora_b = nn.Parameter(torch.zeros(count, out_features, rank, dtype=dtype))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Map [num_rows, in_features], sorted by expert, to [num_rows, out_features].

        `ends` [num_experts], int32: where the rows of each expert end.
        """
        a: Tensor = self.lora_a
        b: Tensor = self.lora_b
        # Grouped products need rows whose size is a multiple of 16 bytes.
        if missing := -a.shape[1] % (_ROW_BYTES // a.element_size()):
            a, b = F.pad(a, (0, 0, 0, missing)), F.pad(b, (0, missing))
        out: Tensor = _grouped_linear(_grouped_linear(rows, a, ends), b, ends)
        return out * self.scale

    @torch.no_grad()
    def merged(self, weight: Tensor) -> Tensor:
        """Return `weight`, that of the experts, plus the adapters, computed in float32 and sharded like `weight`."""
        if not isinstance(weight, DTensor):
            return self._sum(weight, self.lora_a, self.lora_b)
        assert isinstance(self.lora_a, DTensor)
        assert isinstance(self.lora_b, DTensor)
        # All three are sharded by experts.
        local = self._sum(weight.to_local(), self.lora_a.to_local(), self.lora_b.to_local())
        return DTensor.from_local(
            local, weight.device_mesh, weight.placements, shape=weight.shape, stride=weight.stride(), run_check=False
        )

    def _sum(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        change = b.detach().float() @ a.detach().float()
        if self.is_transposed:
            change = change.transpose(1, 2)
        return (weight.detach().float() + self.scale * change).to(weight.dtype)


def experts_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of `model` that hold experts and can have adapters, by name."""
    return {name: module for name, module in model.named_modules() if is_experts(module)}


def weights_of(experts: nn.Module) -> tuple[str, ...]:
    """Return the names of the weights of experts, in the order in which transformers registers them."""
    return tuple(name for name, _ in experts.named_parameters(recurse=False) if name in _WEIGHTS)


def add_adapter(experts: nn.Module, name: str, *, rank: int, alpha: float, dtype: torch.dtype, seed: int) -> None:
    """Give the weight `name` of experts an adapter, and let their forward use it."""
    adapter = ExpertsAdapter(experts, name, rank=rank, alpha=alpha, dtype=dtype, seed=seed)
    setattr(experts, name + SUFFIX, adapter)
    kind: Any = type(experts)
    if kind.forward is not _forward:
        experts.__class__ = _adapted(kind)


def adapters_in(experts: nn.Module) -> dict[str, ExpertsAdapter]:
    """Return the adapters of experts, by the names of their weights."""
    found = {name: getattr(experts, name + SUFFIX, None) for name in weights_of(experts)}
    return {name: adapter for name, adapter in found.items() if isinstance(adapter, ExpertsAdapter)}


@cache
def _adapted(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (kind,), {"forward": _forward, "__module__": kind.__module__})


def _forward(self: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Compute `hidden` [num_tokens, features] with the experts `chosen` and their `weights`, [num_tokens, k] each."""
    experts, order = torch.sort(chosen.reshape(-1))
    numbers = torch.arange(self.num_experts, device=experts.device, dtype=experts.dtype)
    ends = torch.searchsorted(experts, numbers, right=True).to(torch.int32)
    rows = hidden[order // chosen.shape[1]]
    if self.has_gate:
        rows = self._apply_gate(_product(self, "gate_up_proj", rows, experts, ends))
    else:
        rows = self.act_fn(_product(self, "up_proj", rows, experts, ends))
    out = _product(self, "down_proj", rows, experts, ends) * weights.reshape(-1)[order, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return out[back].unflatten(0, chosen.shape).sum(dim=1).to(hidden.dtype)


def _product(self: Any, name: str, rows: Tensor, experts: Tensor, ends: Tensor) -> Tensor:
    bias = getattr(self, f"{name}_bias")[experts] if self.has_bias else None
    out: Tensor = _grouped_linear(rows, getattr(self, name), ends, bias=bias, is_transposed=self.is_transposed)
    adapter = getattr(self, name + SUFFIX, None)
    if adapter is not None and adapter.is_on:
        out = out + adapter(rows, ends)
    return out
