"""AdamW whose state is in the memory of the host, but for the parameters that are being stepped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_BYTES = 2**29
"""Of state that is copied at a time; twice as much is on the device: enough to hide what a copy costs beside its
bytes."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


class OffloadedAdamW(torch.optim.AdamW):
    """The same steps as `torch.optim.AdamW`, bit for bit: the device computes them, a few parameters at a time.

    Between steps the two moments of a parameter are pinned host memory; 8 bytes a float32 parameter travel each way,
    both ways at once: while some parameters are stepped, the moments of the next ones come and those of the last ones
    go.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A closure is not taken."""
        assert closure is None
        for group in self.param_groups:
            every = group["params"]
            parts = [*_in_parts(every), []]
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
        """Back to the host, where `torch.optim` would leave it beside the parameters."""
        super().load_state_dict(state_dict)
        self._send_back([parameter for group in self.param_groups for parameter in group["params"]], [])
        self._lanes.finish()

    @cached_property
    def _lanes(self) -> _Lanes:
        """The same for all steps, as are then the pieces of memory that the moments come to."""
        return _Lanes(local_part(self.param_groups[0]["params"][0]).device)

    def _fetch(self, part: list[nn.Parameter]) -> list[_Moment]:
        """Begin to bring the moments of some parameters to the device; returns where they were."""
        states = [self.state[parameter] for parameter in part if parameter in self.state]
        found = [_Moment(state, name, state[name]) for state in states for name in _MOMENTS if name in state]
        with self._lanes.fetching():
            for state, name, host in found:
                state[name] = _copy(host, self._lanes.device)
        return found

    def _send_back(self, part: list[nn.Parameter], fetched: list[_Moment]) -> None:
        """Begin to copy them to where they were, and to new memory the first time."""
        with self._lanes.sending():
            for state, name, host in fetched:
                local_part(host).copy_(local_part(state[name]), non_blocking=True)
                state[name] = host
            states = [self.state[parameter] for parameter in part if parameter in self.state]
            new = [_Moment(state, name, state[name]) for state in states for name in _MOMENTS if name in state]
            new = [moment for moment in new if local_part(moment.host).device.type != "cpu"]
            for state, name, made in new:
                state[name] = _copy(made, torch.device("cpu"))
        if new:  # the stream that computes made them, and may use their memory again only when they are copied
            self._lanes.await_sent()


class _Moment(NamedTuple):
    state: dict[str, Any]
    """Of its parameter."""
    name: str
    host: Tensor


class _Lanes:
    """Two streams beside the one that computes: for what comes to the device and for what goes. A CPU has none.

    What comes is put into memory of its own stream, which waits for what goes before it uses that again: no more than
    two parts are ever on the device, however far the host is ahead of it.
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
        """What is computed from now on waits for all that is being fetched."""
        if self._streams is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._streams[0])

    def await_sent(self) -> None:
        """What is computed from now on waits for all that is being sent."""
        if self._streams is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._streams[1])

    def finish(self) -> None:
        """The host waits until it has everything."""
        if self._streams is not None:
            self._streams[1].synchronize()


def _in_parts(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    part: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        local = local_part(parameter)
        state = 2 * local.numel() * local.element_size()
        if part and size + state > _BYTES:
            yield part
            part, size = [], 0
        part.append(parameter)
        size += state
    if part:
        yield part


def local_part(tensor: Tensor) -> Tensor:
    """What this rank has of it."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    """There, once the stream has come to it; on the host in pinned memory."""
    local = local_part(tensor)
    if local.device == device:
        return tensor
    copy = torch.empty_like(local, device=device, pin_memory=device.type == "cpu").copy_(local, non_blocking=True)
    if not isinstance(tensor, DTensor):
        return copy
    # As FSDP2 makes its own: `from_local` would take the copy to the device of the mesh.
    return DTensor(copy, tensor._spec, requires_grad=False)  # type: ignore[abstract]
