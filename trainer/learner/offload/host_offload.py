"""Move the memory of tensors to the host while another process uses the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from agentloop.trainer.learner.offload.optimizer_offload import local_part


class HostOffload:
    """Moves the memory of tensors to the host and back.

    The tensor objects are kept: views, tied parameters and all other references are valid again afterwards, byte for
    byte.
    """

    def __init__(self, piece_bytes: int = 256 << 20) -> None:
        """Set the size of a piece of pinned memory; sizes that are not a power of two are rounded up."""
        self._piece_bytes = piece_bytes
        self._storages: list[torch.UntypedStorage] = []
        self._sizes: list[int] = []
        self._pieces: list[Tensor] = []
        """Pinned host memory, kept because allocating it takes longer than filling it."""

    @property
    def num_bytes(self) -> int:
        """Number of bytes that are offloaded to the host."""
        return sum(self._sizes)

    @property
    def num_pinned_bytes(self) -> int:
        """Number of bytes of pinned memory, in use or not."""
        return len(self._pieces) * self._piece_bytes

    @torch.no_grad()
    def offload(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        """Move the tensors that are on `device` to the host. Nothing may read them until `restore`."""
        assert not self._storages, "offloaded already"
        self._storages = list(_storages(tensors, device))
        self._sizes = [storage.nbytes() for storage in self._storages]
        while self.num_pinned_bytes < self.num_bytes:
            pinned = device.type == "cuda"
            self._pieces.append(torch.empty(self._piece_bytes, dtype=torch.uint8, pin_memory=pinned))
        for there, here in self._pairs():
            here.copy_(there, non_blocking=True)
        _synchronize(device)
        for storage in self._storages:
            storage.resize_(0)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # return the memory to the driver, for other processes

    @torch.no_grad()
    def restore(self) -> None:
        """Move all memory back to the device."""
        for storage, size in zip(self._storages, self._sizes, strict=True):
            storage.resize_(size)
        for there, here in self._pairs():
            there.copy_(here, non_blocking=True)
        for device in {storage.device for storage in self._storages}:
            _synchronize(device)
        self._storages, self._sizes = [], []

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each slice of the storages with its slice of a pinned piece, both uint8 [num_bytes]."""
        place = 0
        for storage in self._storages:
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            done = 0
            while done < len(whole):
                piece, start = divmod(place, self._piece_bytes)
                count = min(len(whole) - done, self._piece_bytes - start)
                yield whole[done : done + count], self._pieces[piece][start : start + count]
                done, place = done + count, place + count


def _storages(tensors: Iterable[Tensor], device: torch.device) -> Iterator[torch.UntypedStorage]:
    """Yield each storage once, except memory-mapped files, from which models on CPUs are loaded."""
    known: set[int] = set()
    for tensor in tensors:
        storage = local_part(tensor).untyped_storage()
        if storage.device == device and storage.nbytes() and storage.resizable() and storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            yield storage


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
