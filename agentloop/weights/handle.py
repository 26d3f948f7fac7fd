"""`WeightHandle`: the type of published weights on their way from the learner via workers to engines.

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
    """One version of the weights. Handles that are sent to other processes are small and can be pickled.

    An engine calls one of the two methods once. Both block and may raise `EngineError`.
    """

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each Hugging Face name with its tensor, read-only; a tensor may be valid only until the next one."""
        ...

    def shared(self, shelf: WeightShelf) -> SharedWeights:
        """Return the weights in memory that processes of this host can map; copy them to `shelf` if necessary.

        They stay unchanged while the learner trains, until it publishes again.
        """
        ...
