"""AdamW whose state is in the memory of the host, except for the parameters of the current part of a step."""

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

    Between steps the two moments of a parameter are in pinned host memory. A step copies 8 bytes a float32 parameter
    each way. While it changes some parameters, the moments of the next ones come and those of the last ones go.
    """

    def __init__(self, params: Any, *, part_bytes: int = 2**29, **options: Any) -> None:
        """`part_bytes` of state are copied at a time, and twice as many are on the device.

        Parts must be large enough to hide the latency of their copies.
        """
        self.part_bytes = part_bytes
        super().__init__(params, **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make one step; closures are not supported."""
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
        """Load the state into the memory of the host; `torch.optim` would put it beside the parameters."""
        super().load_state_dict(state_dict)
        self._send_back([parameter for group in self.param_groups for parameter in group["params"]], [])
        self._lanes.finish()

    def copy(self, tensor: Tensor, device: torch.device) -> Tensor:
        """Begin to copy a tensor to a device, or to pinned memory of the host; return it if it is there already."""
        local = local_part(tensor)
        if local.device == device:
            return tensor
        copy = torch.empty_like(local, device=device, pin_memory=device.type == "cpu").copy_(local, non_blocking=True)
        if not isinstance(tensor, DTensor):
            return copy
        # FSDP2 makes its DTensors this way too: `from_local` would move the copy to the device of the mesh.
        return DTensor(copy, tensor._spec, requires_grad=False)  # type: ignore[abstract]

    @cached_property
    def _lanes(self) -> _Lanes:
        """Streams of all steps, which thus reuse the same device memory for moments."""
        return _Lanes(local_part(self.param_groups[0]["params"][0]).device)

    def _fetch(self, part: list[nn.Parameter]) -> list[_Moment]:
        """Begin to copy the moments of some parameters to the device; return where they were."""
        states = [self.state[parameter] for parameter in part if parameter in self.state]
        found = [_Moment(state, name, state[name]) for state in states for name in _MOMENTS if name in state]
        with self._lanes.fetching():
            for state, name, host in found:
                state[name] = self.copy(host, self._lanes.device)
        return found

    def _send_back(self, part: list[nn.Parameter], fetched: list[_Moment]) -> None:
        """Begin to copy moments to where they were, or to new host memory the first time."""
        with self._lanes.sending():
            for state, name, host in fetched:
                local_part(host).copy_(local_part(state[name]), non_blocking=True)
                state[name] = host
            states = [self.state[parameter] for parameter in part if parameter in self.state]
            new = [_Moment(state, name, state[name]) for state in states for name in _MOMENTS if name in state]
            new = [moment for moment in new if local_part(moment.host).device.type != "cpu"]
            for state, name, made in new:
                state[name] = self.copy(made, torch.device("cpu"))
        if new:  # the computing stream allocated them and may reuse their memory only after the copies
            self._lanes.await_sent()


class _Moment(NamedTuple):
    state: dict[str, Any]
    """State of its parameter."""
    name: str
    host: Tensor


class _Lanes:
    """Two streams beside the computing one: for copies to the device and for copies back. A CPU has none.

    Fetched moments are in memory of the fetching stream, which waits for copies back before it reuses that memory. So
    at most two parts are on the device, however far the host is ahead of it.
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
        """Let later computation wait for all that is being fetched."""
        if self._streams is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._streams[0])

    def await_sent(self) -> None:
        """Let later computation wait for all that is being sent."""
        if self._streams is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._streams[1])

    def finish(self) -> None:
        """Wait until the host has everything."""
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
