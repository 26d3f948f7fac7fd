"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685): the trained part of a frozen model.

A linear layer W, or an expert, gets the addition alpha / r B A, with B A of rank r. Engines never see adapters: the
weights that are published, or saved as a model, are W + alpha / r B A under the name of W.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from agentloop.config.learner import LoraConfig
from agentloop.errors import UserError
from agentloop.experts.routing import is_experts
from agentloop.trainer.model.experts import adapters
from agentloop.trainer.model.experts.adapters import ExpertsAdapter, weights_of

_ADAPTERS = ("lora_a", "lora_b")
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""From hidden values [..., in], a weight [out, in] and a bias [out] or None to [..., out]."""
ROUTER = "gate"
"""Router of experts, which gets no adapter: it is small, and changing it moves tokens between frozen experts."""


class LoraLinear(nn.Module):
    """A linear layer with frozen parameters and an adapter, which has no effect before training."""

    def __init__(self, linear: nn.Linear, config: LoraConfig, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.scale = config.alpha / config.rank
        self.is_on = True
        self.product: Product = F.linear
        """Computes the frozen part."""
        out_features, in_features = linear.weight.shape
        bound = 1.0 / math.sqrt(in_features)  # as in nn.Linear and peft
        generator = torch.Generator().manual_seed(seed)
        values = torch.rand(config.rank, in_features, generator=generator, dtype=torch.float32)
        self.lora_a = nn.Parameter(((values * 2 - 1) * bound).to(dtype))
        self.lora_b = nn.Parameter(torch.zeros(out_features, config.rank, dtype=dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        out = self.product(hidden, self.weight, self.bias)
        if not self.is_on:
            return out
        return out + F.linear(F.linear(hidden, self.lora_a), self.lora_b) * self.scale

    @torch.no_grad()
    def merged(self, weight: Tensor) -> Tensor:
        """Return `weight`, that of this layer, plus the adapter, computed in float32 and sharded like `weight`."""
        a = self.lora_a.full_tensor() if isinstance(self.lora_a, DTensor) else self.lora_a
        b: Tensor = self.lora_b
        if not isinstance(weight, DTensor):
            return self._sum(weight, a, b).to(weight.dtype)
        assert isinstance(b, DTensor)
        # Both have the same number of rows, and are sharded by rows.
        local = self._sum(weight.to_local(), a, b.to_local()).to(weight.dtype)
        return DTensor.from_local(
            local, weight.device_mesh, weight.placements, shape=weight.shape, stride=weight.stride(), run_check=False
        )

    def _sum(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return weight.detach().float() + self.scale * (b.detach().float() @ a.detach().to(b.device).float())


def add_adapters(
    model: nn.Module, layers: Sequence[nn.Module], config: LoraConfig, dtype: torch.dtype, seed: int
) -> None:
    """Freeze `model`, and give linear layers and experts inside `layers` an adapter in `dtype`, the same on every rank.

    Raises `UserError` if no layer can have an adapter, if a target is neither the name of a linear layer nor of a
    weight of experts, or for targets `all` in a model whose experts cannot have adapters.
    """
    model.requires_grad_(False)
    inside = {id(module) for layer in layers for module in layer.modules()}
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in inside and name.rpartition(".")[2] != ROUTER
    }
    experts = {name: module for name, module in adapters.experts_of(model).items() if id(module) in inside}
    kinds = sorted({name.rpartition(".")[2] for name in linear} | {n for e in experts.values() for n in weights_of(e)})
    if not kinds:
        raise UserError(
            "learner.lora is set, but this model has no linear layer that adapters fit. Remove learner.lora."
        )
    wanted = kinds if config.targets == "all" else list(config.targets)
    if config.targets == "all" and not experts and _has_experts(model):
        raise UserError(
            "learner.lora.targets is all, but the experts of this model do not support adapters. Name the layers: "
            f"learner.lora.targets=[{','.join(kinds)}]."
        )
    if unknown := sorted(set(wanted) - set(kinds)):
        raise UserError(
            f"learner.lora.targets names {', '.join(unknown)}, which is not a linear layer of this model. Its linear "
            f"layers are {', '.join(kinds)}."
        )
    of_weight: dict[Tensor, LoraLinear] = {}
    for name, module in linear.items():
        path, _, kind = name.rpartition(".")
        if kind in wanted:
            adapter = LoraLinear(module, config, dtype, seed=zlib.crc32(name.encode()) ^ seed)
            # Layers with a common weight have a common adapter: merged, they have one weight again.
            first = of_weight.setdefault(module.weight, adapter)
            adapter.lora_a, adapter.lora_b = first.lora_a, first.lora_b
            setattr(model.get_submodule(path), kind, adapter)
    for name, holder in experts.items():
        for kind in weights_of(holder):
            if kind in wanted:
                own = zlib.crc32(f"{name}.{kind}".encode()) ^ seed
                adapters.add_adapter(holder, kind, rank=config.rank, alpha=config.alpha, dtype=dtype, seed=own)


def _has_experts(model: nn.Module) -> bool:
    config: Any = model.config
    text = config.get_text_config()
    return any(getattr(text, name, 0) for name in ("num_experts", "num_local_experts", "n_routed_experts"))


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter; only the learner has such parameters."""
    return name.rpartition(".")[2] in _ADAPTERS


def merged(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of `model` with merged adapters, one at a time; every rank must consume all of them."""
    owners: dict[str, LoraLinear | ExpertsAdapter] = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            owners[f"{name}.weight"] = module
        elif is_experts(module):
            owners |= {f"{name}.{kind}": adapter for kind, adapter in adapters.adapters_in(module).items()}
    for name, weight in weights:
        if not is_adapter(name):
            yield name, owners[name].merged(weight) if name in owners else weight


def unmerged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the adapters of linear layers, `NAME.lora_a` and `NAME.lora_b`, with their scale in `lora_b`."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield f"{name}.lora_a", module.lora_a
            yield f"{name}.lora_b", module.lora_b * module.scale


def check_publishable(model: nn.Module) -> None:
    """Raise `UserError` if the model has adapters on experts, which no engine takes without merging."""
    if any(is_experts(module) and adapters.adapters_in(module) for module in model.modules()):
        raise UserError(
            "learner.lora.publish is adapters, but engines take the adapters of experts only when they are merged. Set "
            "learner.lora.publish=merged, or name other layers in learner.lora.targets."
        )


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """Switch the adapters off within the context, which gives the initial model."""
    switched = [module for module in model.modules() if isinstance(module, LoraLinear | ExpertsAdapter)]
    for adapter in switched:
        adapter.is_on = False
    try:
        yield
    finally:
        for adapter in switched:
            adapter.is_on = True
