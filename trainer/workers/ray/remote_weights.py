"""Weights on their way to workers: those of this host map the learner's memory, others get them from Ray's object
store, in one copy for all workers of a node."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agentloop.trainer.cluster.session import require_ray
from agentloop.weights.shelf import SharedWeights

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 256 << 20
"""An object is sent to another node whole before its receiver has any of it, so weights travel in several."""


class Published:
    """The weights of one update."""

    def __init__(self, shared: SharedWeights, version: int) -> None:
        self.shared = shared
        self.version = version
        self._references: asyncio.Task[list[Any]] | None = None

    async def references(self) -> list[Any]:
        """Into the object store, where they are put when the first worker asks. The shelf must hold them still."""
        if self._references is None:
            self._references = asyncio.create_task(asyncio.to_thread(self._put))
        return await asyncio.shield(self._references)

    def _put(self) -> list[Any]:
        ray = require_ray()
        return [ray.put(chunk) for chunk in chunks(self.shared)]


class Entry(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    values: Any
    """uint8 array, [num_bytes]: numpy has no bfloat16."""


def chunks(weights: Iterable[tuple[str, torch.Tensor]], max_bytes: int = CHUNK_BYTES) -> Iterator[list[Entry]]:
    """Lists of at most `max_bytes`, or of one larger weight. Weights on CPUs are not copied."""
    chunk: list[Entry] = []
    size = 0
    for name, tensor in weights:
        entry = _entry(name, tensor)
        if chunk and size + entry.values.nbytes > max_bytes:
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += entry.values.nbytes
    if chunk:
        yield chunk


def _entry(name: str, tensor: torch.Tensor) -> Entry:
    import torch

    on_host = tensor.detach().to("cpu").contiguous()
    values = on_host.reshape(-1).view(torch.uint8).numpy()
    return Entry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), values)


def weights_of(chunks: Sequence[Sequence[Entry]]) -> list[tuple[str, torch.Tensor]]:
    """The inverse of `chunks`, without a copy: for reading only."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return [
            (entry.name, torch.from_numpy(entry.values).view(getattr(torch, entry.dtype)).reshape(entry.shape))
            for chunk in chunks
            for entry in chunk
        ]
