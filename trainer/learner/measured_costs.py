"""What micro-batches cost, put right by how long they took: plans then follow the machine, not a count of FLOPs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.model.row_layout import Unit, unit_patches
from agentloop.trainer.planning.costs import CostModel, Measured

_REMEMBERED = 512
"""Micro-batches that the costs are fitted to."""


class MeasuredCosts:
    """Every rank has one and is given the same measurements, so that all find the same plan."""

    def __init__(self, expected: CostModel) -> None:
        self._expected = expected
        self._measured: deque[tuple[Measured, float]] = deque(maxlen=_REMEMBERED)

    def measured(self, samples: Sequence[Sample], row: Sequence[Unit]) -> Measured | None:
        """What the time of this row depends on; None where it says nothing of text."""
        if not row or any(len(unit_patches(samples, unit)) for unit in row):
            return None
        model = self._expected
        tokens = sum(unit.num_tokens for unit in row)
        cost = sum(model.shared(unit.prefix, [len(samples[index]) for index in unit.indices]) for unit in row)
        return Measured(tokens, cost - tokens * model.per_token)

    def learn(self, found: Sequence[tuple[Measured, float]]) -> CostModel:
        """The costs by these seconds, and those before."""
        self._measured.extend(found)
        if not self._measured:
            return self._expected
        return self._expected.fitted(*zip(*self._measured, strict=True))
