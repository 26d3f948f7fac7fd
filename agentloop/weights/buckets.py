"""Memory that other processes of the host can map: GPU memory through CUDA IPC, or anonymous host memory."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class HostHandle(NamedTuple):
    """Handle of host memory, which refers to the process that created it."""

    pid: int
    descriptor: int
    size: int

    @property
    def path(self) -> str:
        """Path of the memory as a file, for processes of the same user while the descriptor is open."""
        return f"/proc/{self.pid}/fd/{self.descriptor}"


class DeviceHandle(NamedTuple):
    """Handle of GPU memory."""

    arguments: tuple[Any, ...]
    """Arguments of torch's `rebuild_cuda_tensor`."""


Handle = HostHandle | DeviceHandle
_DEVICE_ARGUMENT = 6


def new_bucket(size: int, device: torch.device | None) -> tuple[torch.Tensor, Handle]:
    """Allocate uint8 [size] on a GPU, or on the host (None); return it with its handle for other processes."""
    return _host_bucket(size) if device is None else _device_bucket(size, device)


def map_bucket(handle: Handle, device: torch.device | None) -> torch.Tensor:
    """Map the memory of another process. Raises `OSError` or `RuntimeError`.

    GPU memory appears on `device`, even if it is on another GPU. None: on its own GPU, which must be visible.
    """
    import torch

    if isinstance(handle, HostHandle):
        return torch.from_file(handle.path, shared=True, size=handle.size, dtype=torch.uint8)
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    # The driver maps memory of any peer GPU, even if the GPU is not visible to this process.
    arguments = list(handle.arguments)
    if device is not None and device.index is not None:
        arguments[_DEVICE_ARGUMENT] = device.index
    elif device is not None or arguments[_DEVICE_ARGUMENT] >= torch.cuda.device_count():
        arguments[_DEVICE_ARGUMENT] = torch.cuda.current_device()
    bucket: torch.Tensor = rebuild_cuda_tensor(*arguments)
    return bucket


def _host_bucket(size: int) -> tuple[torch.Tensor, HostHandle]:
    """Allocate memory without a file name, so that it is freed when the last process that maps it exits or dies."""
    descriptor = os.memfd_create("agentloop-weights")
    os.ftruncate(descriptor, size)
    handle = HostHandle(os.getpid(), descriptor, size)
    bucket = map_bucket(handle, None)
    weakref.finalize(bucket, os.close, descriptor)
    return bucket, handle


def _device_bucket(size: int, device: torch.device) -> tuple[torch.Tensor, DeviceHandle]:
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    bucket = torch.empty(size, dtype=torch.uint8, device=device)
    return bucket, DeviceHandle(reduce_tensor(bucket)[1])
