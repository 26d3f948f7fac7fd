"""The process group of a learner: torchrun's where there is one, else one of a single rank without any network."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentloop.errors import UserError


def pick_device(name: str) -> torch.device:
    """`auto`, `cpu` or `cuda` to the device of this rank. Raises `UserError` where there is no CUDA device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise UserError("learner.device is cuda, but torch sees no CUDA device. Set learner.device=cpu or auto.")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def data_parallel_mesh(device: torch.device) -> DeviceMesh:
    """A one-dimensional mesh over all ranks, after making the process group where that is still to do."""
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if dist.is_torchelastic_launched():
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    return init_device_mesh(device.type, (dist.get_world_size(),))
