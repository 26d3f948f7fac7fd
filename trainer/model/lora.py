"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685): the trained part of a frozen model.

A linear layer W gets the addition alpha / r B A, with B A of rank r. Engines never see adapters: the weights that are
published, or saved as a model, are W + alpha / r B A under the name of W.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from agentloop.config.learner import LoraConfig
from agentloop.errors import UserError

_ADAPTERS = ("lora_a", "lora_b")
_ROUTER = "gate"
"""Router of experts, which gets no adapter: it is small, and changing it moves tokens between frozen experts."""


class LoraLinear(nn.Module):
    """A linear layer with frozen parameters and an adapter, which has no effect before training."""

    def __init__(self, linear: nn.Linear, config: LoraConfig, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.scale = config.alpha / config.rank
        self.is_on = True
        out_features, in_features = linear.weight.shape
        bound = 1.0 / math.sqrt(in_features)  # as in nn.Linear and peft
        generator = torch.Generator().manual_seed(seed)
        values = torch.rand(config.rank, in_features, generator=generator, dtype=torch.float32)
        self.lora_a = nn.Parameter(((values * 2 - 1) * bound).to(dtype))
        self.lora_b = nn.Parameter(torch.zeros(out_features, config.rank, dtype=dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        out = F.linear(hidden, self.weight, self.bias)
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
    """Freeze `model`, and give linear layers inside `layers` an adapter in `dtype`, the same on every rank.

    Raises `UserError` if a target is not the name of a linear layer, or for targets `all` in a model with experts.
    """
    model.requires_grad_(False)
    inside = {id(module) for layer in layers for module in layer.modules()}
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in inside and name.rpartition(".")[2] != _ROUTER
    }
    kinds = sorted({name.rpartition(".")[2] for name in found})
    wanted = kinds if config.targets == "all" else list(config.targets)
    if config.targets == "all" and _has_experts(model):
        raise UserError(
            "learner.lora.targets is all, but the experts of this model do not support adapters. Name the layers: "
            f"learner.lora.targets=[{','.join(kinds)}]."
        )
    if unknown := sorted(set(wanted) - set(kinds)):
        raise UserError(
            f"learner.lora.targets names {', '.join(unknown)}, which is not a linear layer of this model. Its linear "
            f"layers are {', '.join(kinds)}."
        )
    for name, module in found.items():
        path, _, kind = name.rpartition(".")
        if kind in wanted:
            adapter = LoraLinear(module, config, dtype, seed=zlib.crc32(name.encode()) ^ seed)
            setattr(model.get_submodule(path), kind, adapter)


def _has_experts(model: nn.Module) -> bool:
    config: Any = model.config
    text = config.get_text_config()
    return any(getattr(text, name, 0) for name in ("num_experts", "num_local_experts", "n_routed_experts"))


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter; only the learner has such parameters."""
    return name.rpartition(".")[2] in _ADAPTERS


def merged(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of `model` with merged adapters, one at a time; every rank must consume all of them."""
    owners = {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    for name, weight in weights:
        owner, _, kind = name.rpartition(".")
        if owner not in owners:
            yield name, weight
        elif kind not in _ADAPTERS:
            yield name, owners[owner].merged(weight) if kind == "weight" else weight


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """Switch the adapters off within the context, which gives the initial model."""
    adapters = [module for module in model.modules() if isinstance(module, LoraLinear)]
    for adapter in adapters:
        adapter.is_on = False
    try:
        yield
    finally:
        for adapter in adapters:
            adapter.is_on = True


def save_adapters(folder: Path, weights: dict[str, Tensor], config: LoraConfig, base: Path) -> None:
    """Write unsharded adapters, given by their names here, to a folder that the library peft reads."""
    from safetensors.torch import save_file

    folder.mkdir()
    names = {"lora_a": "lora_A", "lora_b": "lora_B"}
    named = {}
    for name, weight in weights.items():
        owner, _, kind = name.rpartition(".")
        named[f"base_model.model.{owner}.{names[kind]}.weight"] = weight.contiguous()
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    targets = {name.split(".")[-2] for name in weights}
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(targets),
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1) + "\n")
