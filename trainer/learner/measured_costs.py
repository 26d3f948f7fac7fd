"""Costs of micro-batches, fitted to measured times, so that plans match the machine instead of a FLOP count."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.learner.metrics.step_metrics import num_ranks
from agentloop.trainer.model.row_layout import Unit, unit_patches
from agentloop.trainer.planning.costs import CostModel, Measured

_REMEMBERED = 512
"""Number of latest micro-batches that the costs are fitted to."""


class Stopwatch:
    """Measures seconds between moments on a device without waiting for the device in between."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []

    def lap(self) -> None:
        """Mark this moment."""
        if self._on_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return the seconds between consecutive laps; the device must have finished."""
        if self._on_cuda:
            return [start.elapsed_time(end) / 1000 for start, end in pairwise(self._events)]
        return [end - start for start, end in pairwise(self._times)]


class MeasuredCosts:
    """Fits a cost model. Every rank has one and gets the same measurements, so that all compute the same plan."""

    def __init__(self, expected: CostModel) -> None:
        self._expected = expected
        self._measured: deque[tuple[Measured, float]] = deque(maxlen=_REMEMBERED)

    def after(self, samples: Sequence[Sample], rows: Sequence[Sequence[Unit]], seconds: Sequence[float]) -> CostModel:
        """Return the costs, updated with this rank's seconds for the rows of a mini-batch. All ranks must call it.

        The first row waits for the parameters of other ranks and the last for their gradients, so both are ignored.
        """
        inner = list(zip(rows, seconds, strict=True))[1:-1]
        found = [(self.measured(samples, row), time) for row, time in inner]
        mine = [(measured, time) for measured, time in found if measured is not None]
        parts = [mine] * num_ranks()
        if len(parts) > 1:
            dist.all_gather_object(parts, mine)
        return self.learn([pair for part in parts for pair in part])

    def measured(self, samples: Sequence[Sample], row: Sequence[Unit]) -> Measured | None:
        """Return the properties that determine the time of a row; None if it is empty or has images."""
        if not row or any(len(unit_patches(samples, unit)) for unit in row):
            return None
        model = self._expected
        tokens = sum(unit.num_tokens for unit in row)
        cost = sum(model.shared(unit.prefix, [len(samples[index]) for index in unit.indices]) for unit in row)
        return Measured(tokens, cost - tokens * model.per_token)

    def learn(self, found: Sequence[tuple[Measured, float]]) -> CostModel:
        """Return the costs fitted to these measurements and earlier ones."""
        self._measured.extend(found)
        if not self._measured:
            return self._expected
        return self._expected.fitted(*zip(*self._measured, strict=True))
