"""Join the process group of a learner, and create device meshes over its ranks. A single rank needs no network."""

from __future__ import annotations

import atexit
import fcntl
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentloop.errors import UserError
from agentloop.trainer.model.attention.sequence_parallel import SequenceGroup
from agentloop.weights.rendezvous import listening_store

THIS_HOST = "127.0.0.1"
_REACH_SECONDS = 10.0
"""Seconds to wait for a connection to the store of rank 0."""
_ADDRESS_OF_INTERFACE = 0x8915
"""Linux ioctl SIOCGIFADDR."""


@dataclass(slots=True, frozen=True)
class Rendezvous:
    """Address of the store in the process of rank 0, through which all ranks rendezvous."""

    address: str
    """Network address of the host of rank 0."""
    port: int
    ranks: int
    device: str
    """cpu or cuda."""

    def is_reachable(self) -> bool:
        """Return whether this process can connect to the store."""
        try:
            socket.create_connection((self.address, self.port), timeout=_REACH_SECONDS).close()
        except OSError:
            return False
        return True


def listen(ranks: int, address: str = THIS_HOST) -> TCPStore:
    """Return a store that all ranks reach through a `Rendezvous`; it closes when the object is deleted."""
    return listening_store(address, ranks)


def join(rank: int, rendezvous: Rendezvous, gpu: int = 0) -> None:
    """Join the process group of all ranks, and wait until all have joined.

    A CUDA rank uses the visible GPU with index `gpu`.
    """
    store = TCPStore(rendezvous.address, rendezvous.port, rendezvous.ranks, is_master=False)
    if dist.is_initialized():
        assert dist.get_world_size() == 1, "a process can have only one group of several ranks"
        dist.destroy_process_group()
    if rendezvous.device == "cuda":
        torch.cuda.set_device(gpu)
    # Ranks rendezvous under the number that torch gives the group. A group that failed to form keeps its number, and a
    # thread may still wait for it: gloo retries for half an hour to reach a rank that died after publishing its
    # address.
    dist.distributed_c10d._world.group_count = 0
    dist.init_process_group(_backend(rendezvous.device), store=store, rank=rank, world_size=rendezvous.ranks)


def leave() -> None:
    """Destroy the process group, so that the next learner can create one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def device_type(name: str) -> str:
    """Turn `auto`, `cpu` or `cuda` into `cpu` or `cuda`, without using it. Raises `UserError` without a CUDA device."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("learner.device is cuda, but torch sees no CUDA device. Set learner.device=cpu or auto.")
    return name


def pick_device(name: str) -> torch.device:
    """Return the device of this rank for `auto`, `cpu` or `cuda`. Raises `UserError` if there is no CUDA device."""
    if device_type(name) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def data_parallel_mesh(device: torch.device) -> DeviceMesh:
    """Return a one-dimensional mesh over all ranks.

    A process that has not joined a group becomes the only rank of a group that lasts as long as the process. Raises
    `UserError` under torchrun.
    """
    if not dist.is_initialized():
        if dist.is_torchelastic_launched():
            raise UserError("A learner starts its ranks itself. Run it without torchrun, and set learner.ranks.")
        dist.init_process_group(_backend(device.type), store=HashStore(), rank=0, world_size=1)
        atexit.register(leave)  # torch warns about a group that is not destroyed at exit
    return init_device_mesh(device.type, (dist.get_world_size(),))


def node_mesh(mesh: DeviceMesh, nodes: int | None) -> DeviceMesh:
    """Return a two-dimensional mesh: nodes, which replicate the model, and the ranks of each node, which shard it."""
    nodes = nodes or 1
    return init_device_mesh(mesh.device_type, (nodes, mesh.size() // nodes), mesh_dim_names=("replicate", "shard"))


def sequence_group(mesh: DeviceMesh, size: int) -> SequenceGroup | None:
    """Return the group of `size` consecutive ranks that share rows with this rank; None if `size` is 1.

    Raises `UserError` if the number of ranks is not a multiple of `size`.
    """
    if size == 1:
        return None
    if mesh.size() % size:
        raise UserError(
            f"learner.sequence_parallel is {size} but learner.ranks is {mesh.size()}: ranks share rows in groups of "
            f"equal size. Set learner.ranks to a multiple of {size}."
        )
    grid = init_device_mesh(mesh.device_type, (mesh.size() // size, size), mesh_dim_names=("data", "sequence"))
    return SequenceGroup(grid.get_group("sequence").group_name, grid.get_local_rank("sequence"), size)


def use_interface_of(address: str) -> None:
    """Make gloo and NCCL use the network interface with this address, unless the environment names one.

    By default they use the address of the host name, which is often loopback, or the first interface.
    """
    name = interface_of(address)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # with `=` the whole name must match


def interface_of(address: str) -> str | None:
    """Return the network interface of this host with the IPv4 address `address`; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # the interface has no address
                found = fcntl.ioctl(any_socket.fileno(), _ADDRESS_OF_INTERFACE, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


def _backend(device: str) -> str:
    return "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
