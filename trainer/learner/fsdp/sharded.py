"""A model whose parameters are spread over ranks by FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from agentloop.trainer.model.packed_lm import PackedCausalLM


class ShardedModel:
    """Each layer's parameters are gathered when it runs, or, with `gather_once`, all of them for a mini-batch."""

    def __init__(
        self,
        policy: PackedCausalLM,
        mesh: DeviceMesh,
        compute_dtype: torch.dtype,
        *,
        gather_once: bool = False,
        offload: bool = False,
    ) -> None:
        """Shards `policy` in place over the last dimension of the mesh; a first one has copies. `offload` keeps shards
        and gradients on the host."""
        self._root = policy
        self._once = gather_once
        precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
        where = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
        self._units: list[FSDPModule] = []
        for module in [*policy.layers(), policy]:
            fully_shard(
                module,
                mesh=mesh,
                mp_policy=precision,
                offload_policy=where,
                reshard_after_forward=False if gather_once else None,
            )
            assert isinstance(module, FSDPModule)
            # Token weights are of the whole mini-batch: gradients of ranks are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            self._units.append(module)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Parameters are in their shards again afterwards, also where no backward put them there."""
        try:
            yield
        finally:
            for unit in self._units:
                unit.reshard()

    def before_backward(self, *, is_last: bool) -> None:
        """Whether the next backward sums gradients over the ranks and gives parameters back."""
        if self._once:
            root = self._units[-1]
            root.set_requires_gradient_sync(is_last)
            root.set_reshard_after_backward(is_last)
            root.set_is_last_backward(is_last)


def fits_whole(policy: PackedCausalLM, device: torch.device, compute_dtype: torch.dtype) -> bool:
    """Whether a device may hold all parameters and float32 gradients, beside its shards."""
    if device.type != "cuda":
        return False
    size = sum(p.numel() * (compute_dtype.itemsize + 4 * p.requires_grad) for p in policy.parameters())
    return size <= torch.cuda.get_device_properties(device).total_memory / 4
