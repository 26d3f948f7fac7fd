"""The type of published weights, all the way from the learner over the workers to their engines.

| handle | transport | file |
|---|---|---|
| `TensorWeights` | tensors of this process | tensors.py |
| `SharedWeights` | memory of this host that any process maps: CUDA IPC, or memory of the host | shelf.py |
| `ShardedWeights` | the same, filled by all ranks of a learner | sharded.py |
| `BroadcastWeights` | NCCL or gloo to other hosts | broadcast.py |
| `ObjectWeights` | Ray's object store | agentloop.trainer.workers.ray.object_weights |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from agentloop.weights.shelf import SharedWeights, WeightShelf


class WeightHandle(Protocol):
    """One version of the weights. Those that travel to other processes can be pickled and are small.

    An engine calls one of the two methods, once. Both block and may raise `EngineError`.
    """

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each Hugging Face name with its tensor, for reading. A tensor may be valid only until the next one."""
        ...

    def shared(self, shelf: WeightShelf) -> SharedWeights:
        """Return the weights in memory that other processes of this host map: in `shelf` unless they have such memory.

        They stay as they are while the learner trains, until it publishes again.
        """
        ...
