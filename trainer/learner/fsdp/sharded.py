"""A model whose parameters FSDP2 shards over ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from agentloop.trainer.model.packed_lm import PackedCausalLM


class ShardedModel:
    """Gathers the parameters of each layer when it runs, or, with `gather_once`, all of them once per mini-batch."""

    def __init__(
        self,
        policy: PackedCausalLM,
        mesh: DeviceMesh,
        compute_dtype: torch.dtype,
        *,
        gather_once: bool = False,
        offload: bool = False,
    ) -> None:
        """Shard `policy` in place over the last dimension of the mesh, and replicate it over the first of two.

        `offload` keeps shards and gradients in host memory.
        """
        self._root = policy
        self._once = gather_once
        precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        where = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
        self._units: list[FSDPModule] = []
        layers = policy.layers()[::-1]  # FSDP needs a layer inside another one first
        common = _common_parameters(layers)
        alone = [layer for layer in layers if common.isdisjoint(layer.parameters())]
        for module in [*alone, policy]:
            fully_shard(
                module,
                mesh=mesh,
                mp_policy=precision,
                offload_policy=where,
                reshard_after_forward=False if gather_once else None,
            )
            assert isinstance(module, FSDPModule)
            # Token weights are normalized over the whole mini-batch: sum the gradients of ranks, do not average them.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            self._units.append(module)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Reshard all parameters afterwards, even without a backward pass."""
        try:
            yield
        finally:
            for unit in self._units:
                unit.reshard()

    def before_backward(self, *, is_last: bool) -> None:
        """Sum gradients over ranks and free parameters only in the last backward pass of a mini-batch."""
        if self._once:
            root = self._units[-1]
            root.set_requires_gradient_sync(is_last)
            root.set_reshard_after_backward(is_last)
            root.set_is_last_backward(is_last)


def _common_parameters(layers: Sequence[nn.Module]) -> set[nn.Parameter]:
    """Return the parameters that several modules inside the layers have, as in Zamba.

    FSDP shards a parameter once, so their layers are sharded as a part of the whole model.
    """
    owners: dict[nn.Parameter, set[nn.Module]] = {}
    for layer in layers:
        for module in layer.modules():
            for parameter in module.parameters(recurse=False):
                owners.setdefault(parameter, set()).add(module)
    return {parameter for parameter, modules in owners.items() if len(modules) > 1}


def fits_unsharded(policy: PackedCausalLM, device: torch.device, compute_dtype: torch.dtype) -> bool:
    """Return whether all parameters and their float32 gradients fit in a quarter of the device memory."""
    if device.type != "cuda":
        return False
    size = sum(p.numel() * (compute_dtype.itemsize + 4 * p.requires_grad) for p in policy.parameters())
    return size <= torch.cuda.get_device_properties(device).total_memory / 4
