"""Weights in Ray's object store, with one copy for all workers of a node, for hosts that no broadcast reaches."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from agentloop.trainer.cluster.session import require_ray
from agentloop.weights.shelf import SharedWeights, WeightShelf

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 256 << 20
"""Size of an object in bytes. A receiver cannot use an object before all of it has arrived, so weights are split."""


@dataclass(frozen=True, slots=True)
class ObjectWeights:
    """A `WeightHandle` over references to chunks in the object store."""

    references: tuple[Any, ...]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for reference in self.references:
            yield from weights_of([reference.future().result()])

    def shared(self, shelf: WeightShelf) -> SharedWeights:
        return shelf.put(self.tensors())


class Published:
    """One update of all workers."""

    def __init__(self, shared: SharedWeights, version: int) -> None:
        self.shared = shared
        self.version = version
        self._objects: asyncio.Task[ObjectWeights] | None = None

    async def objects(self) -> ObjectWeights:
        """Return the weights in the object store; the first call stores them from the shelf."""
        if self._objects is None:
            self._objects = asyncio.create_task(asyncio.to_thread(self._put))
        return await asyncio.shield(self._objects)

    def _put(self) -> ObjectWeights:
        ray = require_ray()
        return ObjectWeights(tuple(ray.put(chunk) for chunk in chunks(self.shared.tensors())))


class Entry(NamedTuple):
    """One weight."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: Any
    """uint8 array, [num_bytes]: numpy has no bfloat16."""


def chunks(weights: Iterable[tuple[str, torch.Tensor]], max_bytes: int = CHUNK_BYTES) -> Iterator[list[Entry]]:
    """Yield lists of at most `max_bytes`, or with one larger weight. Weights in host memory are not copied."""
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
    """Return the weights of `chunks` without a copy; read-only."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return [
            (entry.name, torch.from_numpy(entry.values).view(getattr(torch, entry.dtype)).reshape(entry.shape))
            for chunk in chunks
            for entry in chunk
        ]
