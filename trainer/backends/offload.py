"""AdamW whose state is in the memory of the host, but for the parameters that are being stepped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_BYTES = 2 * 2**30
"""Of state on the device at a time: enough to hide what a copy costs beside its bytes."""


class OffloadedAdamW(torch.optim.AdamW):
    """The same steps as `torch.optim.AdamW`, bit for bit: the device computes them, a few parameters at a time.

    Between steps the two moments of a parameter are pinned host memory; 8 bytes a float32 parameter travel each way.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A closure is not taken."""
        assert closure is None
        for group in self.param_groups:
            every = group["params"]
            try:
                for some in _in_parts(every):
                    group["params"] = some
                    self._move(some, to_host=False)
                    super().step()
                    self._move(some, to_host=True)
            finally:
                group["params"] = every
        return None

    def load_state_dict(self, state_dict: Any) -> None:
        """Back to the host, where `torch.optim` would leave it beside the parameters."""
        super().load_state_dict(state_dict)
        self._move([parameter for group in self.param_groups for parameter in group["params"]], to_host=True)

    def _move(self, parameters: Iterable[nn.Parameter], *, to_host: bool) -> None:
        device = None
        for parameter in parameters:
            state = self.state.get(parameter, {})
            for name in ("exp_avg", "exp_avg_sq"):
                if name in state:
                    device = _local(parameter).device
                    state[name] = _moved(state[name], torch.device("cpu") if to_host else device)
        if to_host and device is not None and device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # before anyone reads what is copied


def _in_parts(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    part: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        local = _local(parameter)
        state = 2 * local.numel() * local.element_size()
        if part and size + state > _BYTES:
            yield part
            part, size = [], 0
        part.append(parameter)
        size += state
    if part:
        yield part


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    local = _local(tensor)
    if local.device == device:
        return tensor
    pinned = device.type == "cpu"
    copy = torch.empty_like(local, device=device, pin_memory=pinned).copy_(local, non_blocking=True)
    if not isinstance(tensor, DTensor):
        return copy
    # As FSDP2 makes its own: `from_local` would take the copy to the device of the mesh.
    return DTensor(copy, tensor._spec, requires_grad=False)  # type: ignore[abstract]
