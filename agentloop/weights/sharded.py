"""Weights of a learner with several ranks: each rank owns some of the weights, and none holds all of them.

                  rank 0                    rank 1
    parameters    a[0:2]  b[0:2]            a[2:4]  b[2:4]         shards of FSDP
    shelves       a[0:4]                    b[0:4]                 rank 0 owns a, rank 1 owns b

The shards of a weight are sent directly to its owner's shelf; it is unsharded nowhere else.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from agentloop.weights.shelf import BUCKET_BYTES, SharedWeights, WeightShelf

BATCH_BYTES = 256 << 20
"""Size in bytes of the weights that are cast and collected together."""


@dataclass(frozen=True, slots=True)
class ShardedWeights:
    """A `WeightHandle` of a learner with several ranks, which fill their shelves when an engine takes the weights."""

    share: Callable[[bool], SharedWeights]
    """Fills the shelves of all ranks, in host memory if True. Blocks, and overwrites the previous version."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        return self.share(False).tensors()

    def shared(self, shelf: WeightShelf) -> SharedWeights:
        return self.share(shelf.on_host)


class ShardedShelf:
    """The shelf of one rank. Every rank of the default process group has one and calls `fill` with the same weights."""

    def __init__(self, *, batch_bytes: int = BATCH_BYTES, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._bucket_bytes = bucket_bytes
        self._on_host = False
        self.shelf = WeightShelf(bucket_bytes=bucket_bytes)
        self._batch_bytes = batch_bytes
        self._hosts: list[str] = []
        self._owners: dict[str, int] = {}

    def fill(
        self,
        weights: Iterable[tuple[str, Tensor]],
        dtype: torch.dtype,
        sizes: Mapping[str, int],
        *,
        on_host: bool = False,
    ) -> SharedWeights | None:
        """Cast all weights to `dtype` and share them in order; return None on all ranks but the first.

        A weight is a `DTensor` sharded by rows, or unsharded on every rank. `sizes` has the number of elements of each
        weight by name, and may have more names. `on_host` keeps the shared memory off GPUs.
        """
        if on_host != self._on_host:
            self._on_host = on_host
            self.shelf = WeightShelf(on_host=on_host, bucket_bytes=self._bucket_bytes)
        if sizes.keys() != self._owners.keys():
            self._hosts = self._hosts or _gather_everywhere(_this_host())
            near = [rank for rank, host in enumerate(self._hosts) if host == self._hosts[0]]
            self._owners = owners(sizes, near)
        names: list[str] = []
        batch: list[tuple[str, Tensor]] = []
        room = self._batch_bytes
        self.shelf.begin()
        for name, weight in weights:
            names.append(name)
            batch.append((name, weight))
            room -= weight.numel() * dtype.itemsize
            if room <= 0:
                self._collect(batch, dtype)
                batch, room = [], self._batch_bytes
        self._collect(batch, dtype)
        parts: list[SharedWeights | None] = [None] * dist.get_world_size()
        mine = self.shelf.end()  # every rank has received its weights by now
        dist.gather_object(mine, parts if dist.get_rank() == 0 else None)
        if dist.get_rank() > 0:
            return None
        return SharedWeights.joined([part for part in parts if part is not None and part.places], names)

    def _collect(self, batch: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
        """Send every weight of the batch to its owner."""
        me = dist.get_rank()
        transfers: list[dist.P2POp] = []
        staged: list[tuple[Tensor, Tensor]] = []
        """Pairs (target in host memory, tensor on the device that receives it)."""
        for name, weight in batch:
            owner = self._owners[name]
            local = weight.to_local() if isinstance(weight, DTensor) else weight
            local = local.detach().to(dtype)
            whole = self.shelf.room_for(name, dtype, weight.shape, local.device) if owner == me else None
            for rank, first, end in holders(weight, owner):
                if rank == me and whole is not None:
                    whole[first:end].copy_(local) if weight.ndim else whole.copy_(local)
                elif whole is not None:
                    place = part = whole[first:end]
                    if place.device != local.device:
                        part = torch.empty_like(place, device=local.device)
                        staged.append((place, part))
                    transfers.append(dist.P2POp(dist.irecv, part, rank))
                elif rank == me:
                    transfers.append(dist.P2POp(dist.isend, local.contiguous(), owner))
        if transfers:
            for work in dist.batch_isend_irecv(transfers):
                work.wait()
        for place, part in staged:
            place.copy_(part)


def owners(sizes: Mapping[str, int], ranks: Iterable[int]) -> dict[str, int]:
    """Return the owning rank of each weight: assign the largest first, each to the rank with the fewest elements."""
    loads = [(0, rank) for rank in ranks]
    found: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + sizes[name], rank))
        found[name] = rank
    return {name: found[name] for name in sizes}


def holders(weight: Tensor, owner: int) -> list[tuple[int, int, int]]:
    """Return the shards of a weight for `owner`: (rank, first row, end row) of all ranks that hold some.

    Among replicas of the shards, these are the owner's.
    """
    if not isinstance(weight, DTensor):
        return [(owner, 0, weight.shape[0] if weight.ndim else 1)]
    mesh, ranks = weight.device_mesh, weight.device_mesh.mesh
    divided = [dim for dim, placement in enumerate(weight.placements) if isinstance(placement, Shard)]
    assert len(divided) == 1, f"expected shards of rows over one dimension of the mesh, not {weight.placements}"
    assert all(placement in (Shard(0), Replicate()) for placement in weight.placements), weight.placements
    coordinate = [int(place) for place in (ranks == owner).nonzero()[0]]
    row: list[int] = ranks[tuple(slice(None) if dim in divided else at for dim, at in enumerate(coordinate))].tolist()
    step = -(-weight.shape[0] // mesh.size(divided[0]))
    spans = [(rank, step * place, min(step * (place + 1), weight.shape[0])) for place, rank in enumerate(row)]
    return [span for span in spans if span[1] < span[2]]


def _this_host() -> str:
    """Return a name that is equal in processes that can map each other's memory."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def _gather_everywhere(mine: str) -> list[str]:
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found
