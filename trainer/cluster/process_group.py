"""The process group of a learner: of its rank processes, of torchrun, or of a single rank without any network."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentloop.errors import UserError
from agentloop.trainer.model.attention.sequence_parallel import SequenceGroup
from agentloop.weights.rendezvous import listening_store

_THIS_HOST = "127.0.0.1"


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
        if dist.is_torchelastic_launched():
            dist.init_process_group(_backend(device.type))
        else:
            dist.init_process_group(_backend(device.type), store=HashStore(), rank=0, world_size=1)
    return init_device_mesh(device.type, (dist.get_world_size(),))


def node_mesh(mesh: DeviceMesh, nodes: int | None) -> DeviceMesh:
    """The ranks of `mesh` in two dimensions: nodes, which hold the same, and the ranks of each, which divide it."""
    if nodes is None:
        nodes = mesh.size() // int(os.environ.get("LOCAL_WORLD_SIZE", mesh.size()))  # of torchrun
    return init_device_mesh(mesh.device_type, (nodes, mesh.size() // nodes), mesh_dim_names=("replicate", "shard"))


def sequence_group(mesh: DeviceMesh, size: int) -> SequenceGroup | None:
    """The `size` neighbours of this rank that share rows; None where each has its own. Raises `UserError`."""
    if size == 1:
        return None
    if mesh.size() % size:
        raise UserError(
            f"learner.sequence_parallel is {size} and learner.ranks {mesh.size()}: rows are shared by groups of equal "
            f"size. Set learner.ranks to a multiple of {size}."
        )
    grid = init_device_mesh(mesh.device_type, (mesh.size() // size, size), mesh_dim_names=("data", "sequence"))
    return SequenceGroup(grid.get_group("sequence").group_name, grid.get_local_rank("sequence"), size)


@dataclass(slots=True, frozen=True)
class Meeting:
    """Where the ranks of a learner come together: at a store in the process of rank 0."""

    address: str
    """Of the host of rank 0, as the other hosts know it."""
    port: int
    ranks: int
    per_host: int
    """Ranks that follow each other on one host, each with a device of its own."""
    device: str
    """Kind of all of these: cpu or cuda."""

    def place_on_host(self, rank: int) -> int:
        """Its device."""
        return rank % self.per_host


def listen(ranks: int, address: str = _THIS_HOST) -> TCPStore:
    """The store that the ranks meet at; this process is rank 0."""
    return listening_store(address, ranks)


def join(rank: int, meeting: Meeting, store: TCPStore | None = None) -> None:
    """Make the process group, with the store of `listen` or the one at `meeting`. Blocks until all ranks are there."""
    if store is None:
        store = TCPStore(meeting.address, meeting.port, meeting.ranks, is_master=False)
    if dist.is_initialized():
        assert dist.get_world_size() == 1, "a process has one group of several ranks"
        dist.destroy_process_group()
    if meeting.device == "cuda":
        torch.cuda.set_device(meeting.place_on_host(rank))
    try:
        dist.init_process_group(_backend(meeting.device), store=store, rank=rank, world_size=meeting.ranks)
    except BaseException:
        # Groups meet under a number, which torch takes back only when it ends a group.
        dist.distributed_c10d._world.group_count = 0
        raise


def leave() -> None:
    """The next learner makes a process group anew."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _backend(device: str) -> str:
    return "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
