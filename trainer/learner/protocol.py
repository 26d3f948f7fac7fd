"""The trainer's model: its configuration, and what the run loop asks of it."""

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
    """The state of a learner at one moment, in the memory of the host."""

    def write(self, folder: Path) -> None:
        """Into a folder that appears whole or not at all. May run in a thread of its own."""


class Learner(Protocol):
    """Holds the weights that are trained."""

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """Train on a batch, each sample once, in `mini_batches` updates, and say how it went.

        Blocks; call it from a thread where an event loop must go on. Raises `UserError` where a trajectory is longer
        than the token budget.
        """
        ...

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Log-probabilities of the sampled tokens of each sample under the current weights, [num_sampled]."""
        ...

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Log-probabilities of the sampled tokens of each sample under the reference model, [num_sampled]. Raises
        `UserError` where there is none."""
        ...

    async def publish(self, engine: TakesWeights, version: int) -> None:
        """Give the engine, or all workers, the current weights under their Hugging Face names, as `version`."""

    def sleep(self) -> None:
        """Leave the device to others: what is there goes to the memory of the host. Until `wake` nothing may be asked
        of it but `close`."""

    def wake(self) -> None:
        """Take the device back; everything is as it was, bit for bit. Without `sleep` before, nothing happens."""

    def save(self, folder: Path) -> None:
        """Everything that an exact resume needs, into a folder that appears whole or not at all."""

    def capture(self) -> Captured:
        """What `save` would write, as it is now: training may go on while it is written."""
        ...

    def load(self, folder: Path) -> None:
        """Go on from `save`. Raises `UserError` where the folder does not hold a state of this model."""

    def save_hf(self, folder: Path) -> None:
        """Model and tokenizer as a folder that transformers' `from_pretrained` loads."""

    def close(self) -> None:
        """End what was started for it. May be called twice."""


class RankLearner(Learner, Protocol):
    """A learner that every rank makes, and of which all call the same methods with the same arguments."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full parameters one at a time under their Hugging Face names; every rank must take all of them."""
        ...

    def share(self, on_host: bool) -> SharedWeights | None:
        """Put the weights into memory that engines map, each into that of one rank, on its device or on the host: no
        rank has all of them. They hold until the next time. None on other ranks than the first."""
        ...
