"""Learner that takes the time of a real one and learns nothing (`SimulatedLearner`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.weights.tensors import TensorWeights
from benchmarks.simulation.virtual_clock import VirtualClockLoop

if TYPE_CHECKING:
    from agentloop.engines.base import TakesWeights


class SimulatedLearner:
    """A `Learner` whose step takes `step_seconds` and `token_seconds` for each token, on a `VirtualClockLoop`."""

    def __init__(self, *, step_seconds: float, token_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._token_seconds = token_seconds
        self.history: list[tuple[float, float, int]] = []
        """(start, end, episodes) of each step, in seconds."""

    def step(self, batch: TrainBatch) -> dict[str, float]:
        self._compute(batch, self._step_seconds)
        return {"num_trajectories": float(len(batch)), "num_sampled": float(batch.num_sampled)}

    def _compute(self, batch: TrainBatch, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        seconds += self._token_seconds * batch.num_tokens
        self.history.append((loop.time(), loop.time() + seconds, len(batch)))
        loop.spend(seconds)

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Those of the engine."""
        return [sample.logprobs[sample.loss_mask] for sample in samples]

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Those of the engine."""
        return self.logprobs(samples)

    async def publish(self, engine: TakesWeights, version: int) -> None:
        """Nothing but the version."""
        await engine.update_weights(TensorWeights([]), version)

    def sleep(self) -> None:
        """There is no memory."""

    def wake(self) -> None:
        """There is no memory."""

    def save(self, folder: Path) -> None:
        self.capture().write(folder)

    def capture(self) -> SimulatedLearner:
        """There is no state."""
        return self

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def load(self, folder: Path) -> None:
        """There is no state."""

    def save_hf(self, folder: Path) -> None:
        """There is no model."""

    def close(self) -> None:
        """There is nothing to close."""
