"""Protocols of learners: the methods that the run loop calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from agentloop.engines.base import TakesWeights
from agentloop.trainer.batch.train_batch import Sample, TrainBatch

if TYPE_CHECKING:
    from torch import Tensor

    from agentloop.weights.shelf import SharedWeights


class Captured(Protocol):
    """Snapshot of a learner's state in host memory."""

    def write(self, folder: Path) -> None:
        """Write the state to a folder atomically. May run in another thread."""


class Learner(Protocol):
    """A model in training."""

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """Train once on each sample of a batch, in `mini_batches` updates; return metrics.

        Blocks: call it from a thread if an event loop must continue. Raises `UserError` if a trajectory is longer than
        the token budget.
        """
        ...

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Return the logprobs of the sampled tokens of each sample under the current weights, [num_sampled] each."""
        ...

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Return the logprobs of the sampled tokens of each sample under the reference model, [num_sampled] each.

        Raises `UserError` if there is no reference model.
        """
        ...

    async def publish(self, engine: TakesWeights, version: int) -> None:
        """Send the current weights, under their Hugging Face names, to the engine or all workers as `version`."""

    def sleep(self) -> None:
        """Offload all tensors to host memory, so that others can use the device.

        Until `wake`, only `close` may be called.
        """

    def wake(self) -> None:
        """Move all tensors back to the device, unchanged. Do nothing if the learner is awake."""

    def save(self, folder: Path) -> None:
        """Write all state that an exact resume needs to a folder, atomically."""

    def capture(self) -> Captured:
        """Copy the state that `save` would write, so that training can continue while the copy is written."""
        ...

    def load(self, folder: Path) -> None:
        """Restore the state from `save`. Raises `UserError` if the folder has no state of this model."""

    def save_hf(self, folder: Path) -> None:
        """Write model and tokenizer to a folder that transformers' `from_pretrained` loads."""

    def close(self) -> None:
        """Release all processes and resources of the learner. Further calls do nothing."""


class RankLearner(Learner, Protocol):
    """A learner with an instance on every rank. All ranks call the same methods with the same arguments."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield unsharded parameters one at a time with their Hugging Face names; every rank must consume all."""
        ...

    def share(self, on_host: bool) -> SharedWeights | None:
        """Put the weights into memory that engines can map, on the device or on the host.

        Each parameter is in the memory of one rank, and no rank has all of them. They are valid until the next call.
        Returns None on all ranks but the first.
        """
        ...
