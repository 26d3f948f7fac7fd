"""A learner over several processes that looks like one of this process: `learner.ranks`, `learner.nodes`."""

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
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.cluster import shared_folder
from agentloop.trainer.cluster.learner_host import Home
from agentloop.trainer.cluster.process_group import pick_device
from agentloop.trainer.cluster.rank_nodes import num_nodes
from agentloop.trainer.cluster.rank_process import Objects
from agentloop.trainer.cluster.rank_processes import RankProcesses
from agentloop.trainer.learner.protocol import Captured, RankLearner
from agentloop.weights.sharded import ShardedWeights

_processes: RankProcesses | None = None
"""torch has one default process group, so all learners of this process share their ranks."""
_names = (f"learner-{number}" for number in itertools.count())


class RankedLearner:
    """A `Learner`: rank 0 is in this process, each further one in a process that ends with it."""

    def __init__(
        self, make: Callable[[LearnerConfig], RankLearner], config: LearnerConfig, home: Home | None = None
    ) -> None:
        """`make` is what every rank makes, a class of a backend. Raises `UserError` as it does."""
        self._name = next(_names)
        self._is_closed = False
        device = pick_device(config.device).type
        config = config.replace(nodes=num_nodes(config, device))
        self._ranks = _join(config, device, home)
        try:
            if self._ranks.nodes > 1:
                shared_folder.check(self._ranks, Path(config.model), home.folder if home else None)
            self._local = self._ranks.run(partial(make, config), _make, self._name, make, config)
        except BaseException:
            _leave(self._ranks)
            raise

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """See `Learner.step`."""
        result: dict[str, float] = self._everywhere("step", batch)
        return result

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """See `Learner.logprobs`."""
        result: list[NDArray[np.float32]] = self._everywhere("logprobs", samples)
        return result

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """See `Learner.reference_logprobs`."""
        result: list[NDArray[np.float32]] = self._everywhere("reference_logprobs", samples)
        return result

    async def publish(self, engine: TakesWeights, version: int) -> None:
        """See `Learner.publish`. Each rank has a part of what is published; an engine that wants none costs nothing."""
        await engine.update_weights(ShardedWeights(partial(self._everywhere, "share")), version)

    def sleep(self) -> None:
        """See `Learner.sleep`."""
        self._everywhere("sleep")

    def wake(self) -> None:
        """See `Learner.wake`."""
        self._everywhere("wake")

    def save(self, folder: Path) -> None:
        """See `Learner.save`."""
        self.capture().write(folder)

    def capture(self) -> Captured:
        """See `Learner.capture`."""
        name = f"{self._name}-{next(_names)}"
        return _Captured(self._ranks, name, self._ranks.run(self._local.capture, _capture, self._name, name))

    def load(self, folder: Path) -> None:
        """See `Learner.load`."""
        self._everywhere("load", folder)

    def save_hf(self, folder: Path) -> None:
        """See `Learner.save_hf`."""
        self._everywhere("save_hf", folder)

    def close(self) -> None:
        """See `Learner.close`."""
        if not self._is_closed:
            self._is_closed = True
            _leave(self._ranks)

    def _everywhere(self, method: str, *args: Any) -> Any:
        return self._ranks.run(partial(getattr(self._local, method), *args), _call, self._name, method, *args)


class _Captured:
    """The state of every rank, each in the memory of its process."""

    def __init__(self, ranks: RankProcesses, name: str, local: Captured) -> None:
        self._ranks, self._name, self._local = ranks, name, local

    def write(self, folder: Path) -> None:
        """See `Captured.write`."""
        self._ranks.run(partial(self._local.write, folder), _write, self._name, folder, apart=True)


def _join(config: LearnerConfig, device: str, home: Home | None) -> RankProcesses:
    global _processes
    nodes = config.nodes or 1
    if _processes is None or not _processes.is_alive:
        _processes = RankProcesses(config.ranks, device, nodes, home.seats if home else ())
    if (_processes.ranks, _processes.nodes, _processes.device) != (config.ranks, nodes, device):
        raise UserError(
            f"A learner of {_processes.ranks} ranks on {_processes.nodes} nodes and {_processes.device} is open in "
            f"this process, and another one asks for {config.ranks} on {nodes} and {device}: close the first, or give "
            "both the same learner.ranks, learner.nodes and learner.device."
        )
    _processes.users += 1
    return _processes


def _leave(processes: RankProcesses) -> None:
    global _processes
    processes.users -= 1
    if processes.users <= 0:
        processes.close()
        if _processes is processes:
            _processes = None


# What the rank processes do.


def _make(objects: Objects, name: str, make: Callable[[LearnerConfig], RankLearner], config: LearnerConfig) -> None:
    objects[name] = make(config)


def _call(objects: Objects, name: str, method: str, *args: Any) -> None:
    getattr(objects[name], method)(*args)


def _capture(objects: Objects, name: str, captured: str) -> None:
    objects[captured] = objects[name].capture()


def _write(objects: Objects, captured: str, folder: Path) -> None:
    objects.pop(captured).write(folder)
