"""AdamW with its state in host memory, except for the parameters that a step currently updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_MOMENTS = ("exp_avg", "exp_avg_sq")


class OffloadedAdamW(torch.optim.AdamW):
    """Takes the same steps as `torch.optim.AdamW`, bit for bit, on the device, a few parameters at a time.

    Between steps the two moments of a parameter are in pinned host memory. A step copies 8 bytes per float32 parameter
    in each direction. While it updates some parameters, it prefetches the moments of the next parameters and copies
    back those of the previous ones.
    """

    def __init__(self, params: Any, *, part_bytes: int = 2**29, **options: Any) -> None:
        """Create the optimizer; it copies `part_bytes` of state at a time and keeps twice as many on the device.

        Parts must be large enough to hide the latency of their copies.
        """
        self.part_bytes = part_bytes
        super().__init__(params, **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Run one step; closures are not supported."""
        assert closure is None
        for group in self.param_groups:
            every = group["params"]
            parts = [*_in_parts(every, self.part_bytes), []]
            try:
                coming = self._fetch(parts[0])
                for part, following in pairwise(parts):
                    here = coming
                    self._lanes.await_fetched()
                    coming = self._fetch(following)
                    group["params"] = part
                    super().step()
                    self._send_back(part, here)
            finally:
                group["params"] = every
        self._lanes.finish()
        return None

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state into host memory; `torch.optim` would put it on the device of the parameters."""
        super().load_state_dict(state_dict)
        self._send_back([parameter for group in self.param_groups for parameter in group["params"]], [])
        self._lanes.finish()

    def copy(self, tensor: Tensor, device: torch.device) -> Tensor:
        """Start copying a tensor to a device, or to pinned host memory; return the tensor if it is already there."""
        local = local_part(tensor)
        if local.device == device:
            return tensor
        copy = torch.empty_like(local, device=device, pin_memory=device.type == "cpu").copy_(local, non_blocking=True)
        if not isinstance(tensor, DTensor):
            return copy
        # FSDP2 also creates its DTensors like this: `from_local` would move the copy to the device of the mesh.
        return DTensor(copy, tensor._spec, requires_grad=False)  # type: ignore[abstract]

    @cached_property
    def _lanes(self) -> _Lanes:
        """Streams shared by all steps, so that they reuse the same device memory for moments."""
        return _Lanes(local_part(self.param_groups[0]["params"][0]).device)

    def _fetch(self, part: list[nn.Parameter]) -> list[_Moment]:
        """Start copying the moments of some parameters to the device; return their host locations."""
        states = [self.state[parameter] for parameter in part if parameter in self.state]
        found = [_Moment(state, name, state[name]) for state in states for name in _MOMENTS if name in state]
        with self._lanes.fetching():
            for state, name, host in found:
                state[name] = self.copy(host, self._lanes.device)
        return found

    def _send_back(self, part: list[nn.Parameter], fetched: list[_Moment]) -> None:
        """Start copying moments back to their host locations, or to new host memory the first time."""
        with self._lanes.sending():
            for state, name, host in fetched:
                local_part(host).copy_(local_part(state[name]), non_blocking=True)
                state[name] = host
            states = [self.state[parameter] for parameter in part if parameter in self.state]
            new = [_Moment(state, name, state[name]) for state in states for name in _MOMENTS if name in state]
            new = [moment for moment in new if local_part(moment.host).device.type != "cpu"]
            for state, name, made in new:
                state[name] = self.copy(made, torch.device("cpu"))
        if new:  # the compute stream allocated them, and may reuse their memory only after the copies
            self._lanes.await_sent()


class _Moment(NamedTuple):
    state: dict[str, Any]
    """State of its parameter."""
    name: str
    host: Tensor


class _Lanes:
    """Two streams in addition to the compute stream: for copies to the device and for copies back. A CPU has none.

    Fetched moments are in memory of the fetching stream, which waits for copies back before it reuses that memory. So
    at most two parts are on the device, even if the host runs far ahead of it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        if device.type == "cuda":
            self._streams = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def fetching(self) -> AbstractContextManager[Any]:
        if self._streams is None:
            return nullcontext()
        coming, going = self._streams
        coming.wait_stream(going)
        return torch.cuda.stream(coming)

    def sending(self) -> AbstractContextManager[Any]:
        if self._streams is None:
            return nullcontext()
        _, going = self._streams
        going.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(going)

    def await_fetched(self) -> None:
        """Make later computation wait for pending copies to the device."""
        if self._streams is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._streams[0])

    def await_sent(self) -> None:
        """Make later computation wait for pending copies to the host."""
        if self._streams is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._streams[1])

    def finish(self) -> None:
        """Wait until all copies to the host are complete."""
        if self._streams is not None:
            self._streams[1].synchronize()


def _in_parts(parameters: list[nn.Parameter], part_bytes: int) -> Iterator[list[nn.Parameter]]:
    part: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        local = local_part(parameter)
        state = 2 * local.numel() * local.element_size()
        if part and size + state > part_bytes:
            yield part
            part, size = [], 0
        part.append(parameter)
        size += state
    if part:
        yield part


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor if it is not sharded."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
