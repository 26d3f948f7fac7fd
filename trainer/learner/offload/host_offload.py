"""Tensors whose memory is on the host for a while, because somebody else needs the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from agentloop.trainer.learner.offload.optimizer_offload import local_part

_PIECE_BYTES = 256 << 20
"""Pinned memory comes in powers of two: pieces of one waste less than storages of any size would."""


class HostOffload:
    """Takes memory from under tensors and puts it back. It is the memory that goes, not the tensors: views of one
    memory, tied parameters and whoever else knows a tensor find it, byte for byte, where it was."""

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []
        self._sizes: list[int] = []
        self._pieces: list[Tensor] = []
        """Of the host; kept, since getting pinned memory takes longer than filling it."""

    @property
    def num_bytes(self) -> int:
        """On the host instead of the device; 0 while nothing is parked."""
        return sum(self._sizes)

    @torch.no_grad()
    def park(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        """Those that are on `device`. Nobody may read them until `bring_back`."""
        assert not self._storages, "parked already"
        self._storages = list(_storages(tensors, device))
        self._sizes = [storage.nbytes() for storage in self._storages]
        while len(self._pieces) * _PIECE_BYTES < self.num_bytes:
            pinned = device.type == "cuda"
            self._pieces.append(torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=pinned))
        for there, here in self._pairs():
            here.copy_(there, non_blocking=True)
        _synchronize(device)
        for storage in self._storages:
            storage.resize_(0)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # to the driver: it is another process that needs it

    @torch.no_grad()
    def bring_back(self) -> None:
        """All that was parked."""
        for storage, size in zip(self._storages, self._sizes, strict=True):
            storage.resize_(size)
        for there, here in self._pairs():
            there.copy_(here, non_blocking=True)
        for device in {storage.device for storage in self._storages}:
            _synchronize(device)
        self._storages, self._sizes = [], []

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts of the storages, one after the other, each with its place in the pieces; uint8 [num_bytes]."""
        place = 0
        for storage in self._storages:
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            done = 0
            while done < len(whole):
                piece, start = divmod(place, _PIECE_BYTES)
                count = min(len(whole) - done, _PIECE_BYTES - start)
                yield whole[done : done + count], self._pieces[piece][start : start + count]
                done, place = done + count, place + count


def _storages(tensors: Iterable[Tensor], device: torch.device) -> Iterator[torch.UntypedStorage]:
    """Each once. Memory that a file is mapped to stays: on CPUs, models are loaded that way."""
    known: set[int] = set()
    for tensor in tensors:
        storage = local_part(tensor).untyped_storage()
        if storage.device == device and storage.nbytes() and storage.resizable() and storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            yield storage


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
