"""A learner of other processes that has the interface of a local learner: `learner.ranks`, `nodes` and `in_process`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import TakesWeights
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.cluster import shared_files
from agentloop.trainer.cluster.learner_ranks import LearnerRanks, num_nodes
from agentloop.trainer.cluster.process_group import device_type
from agentloop.trainer.cluster.rank_actor import Objects
from agentloop.trainer.cluster.reservation import GpuReservation
from agentloop.trainer.learner.protocol import Captured, RankLearner
from agentloop.weights.sharded import ShardedWeights

_names = (f"learner-{number}" for number in itertools.count())


class RankedLearner:
    """A `Learner` over ranks. Every rank makes the learner of a backend and calls its methods."""

    def __init__(
        self, make: Callable[[LearnerConfig], RankLearner], config: LearnerConfig, ranks: LearnerRanks
    ) -> None:
        """Create the learner on `ranks`, which may have other learners. Raises `UserError` as `make` does."""
        self.ranks = ranks
        self._name = next(_names)
        config = config.replace(nodes=config.nodes or ranks.nodes)
        ranks.run(_make, self._name, make, config)

    def step(self, batch: TrainBatch) -> dict[str, float]:
        result: dict[str, float] = self._everywhere("step", batch)
        return result

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        result: list[NDArray[np.float32]] = self._everywhere("logprobs", samples)
        return result

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        result: list[NDArray[np.float32]] = self._everywhere("reference_logprobs", samples)
        return result

    async def publish(self, engine: TakesWeights, version: int) -> None:
        await engine.update_weights(ShardedWeights(partial(self._everywhere, "share")), version)

    def sleep(self) -> None:
        self._everywhere("sleep")

    def wake(self) -> None:
        self._everywhere("wake")

    def save(self, folder: Path) -> None:
        self.capture().write(folder)

    def capture(self) -> Captured:
        name = f"{self._name}-{next(_names)}"
        self.ranks.run(_capture, self._name, name)
        return _Captured(self.ranks, name)

    def load(self, folder: Path) -> None:
        self._everywhere("load", folder)

    def save_hf(self, folder: Path) -> None:
        self._everywhere("save_hf", folder)

    def close(self) -> None:
        """Do nothing, because `LearnerRanks.close` ends the ranks, which several learners may share."""

    def _everywhere(self, method: str, *args: Any) -> Any:
        return self.ranks.run(_call, self._name, method, *args)


class _Captured:
    """Snapshot of every rank, each in the memory of its process."""

    def __init__(self, ranks: LearnerRanks, name: str) -> None:
        self._ranks, self._name = ranks, name

    def write(self, folder: Path) -> None:
        self._ranks.run(_write, self._name, folder, aside=True)


class OwningLearner(RankedLearner):
    """A `RankedLearner` that starts its ranks, and ends them when it is closed."""

    def __init__(
        self,
        make: Callable[[LearnerConfig], RankLearner],
        config: LearnerConfig,
        reservation: GpuReservation | None = None,
        folder: Path | None = None,
    ) -> None:
        """Start the ranks on the GPUs of the reservation; `folder` is the run folder. Raises `UserError`."""
        device = device_type(config.device)
        nodes = num_nodes(config, device)
        ranks = LearnerRanks(config.ranks, device, nodes, reservation, in_process=config.in_process)
        try:
            if nodes > 1:
                shared_files.check(ranks, Path(config.model), folder)
            super().__init__(make, config, ranks)
        except BaseException:
            ranks.close()
            raise

    def close(self) -> None:
        self.ranks.close()


# Functions that the ranks call.


def _make(objects: Objects, name: str, make: Callable[[LearnerConfig], RankLearner], config: LearnerConfig) -> None:
    objects[name] = make(config)


def _call(objects: Objects, name: str, method: str, *args: Any) -> Any:
    return getattr(objects[name], method)(*args)


def _capture(objects: Objects, name: str, captured: str) -> None:
    objects[captured] = objects[name].capture()


def _write(objects: Objects, captured: str, folder: Path) -> None:
    objects.pop(captured).write(folder)
