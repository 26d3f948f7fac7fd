"""`MiniBatch`: what one optimizer update is made of, whether its samples come at once or in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.objective.objective import Objective


@dataclass(slots=True)
class MiniBatch:
    """The samples of an update so far. Backends sum their gradient up where parameters keep theirs.

    What a token counts depends on the whole mini-batch, but only by a factor that all tokens have in common. So the
    gradient is summed in the unit of the first part, and is multiplied by `scale` in the end.
    """

    is_first: bool = True
    """Of the mini-batches of a batch."""
    is_whole: bool = False
    """No further part comes."""
    samples: list[Sample] = field(default_factory=list)
    num_computed: int = 0
    """Samples that had passes, on any rank."""
    rows: list[list[int]] = field(default_factory=list)
    """Micro-batches of this rank, as indices of samples."""
    losses: list[Tensor] = field(default_factory=list)
    """Of each of them, in the unit of the first part."""
    scale: float = 1.0
    _unit: float = 0.0
    """What a token of the first sample counted in the first part."""

    def add(self, part: Sequence[Sample], objective: Objective) -> NDArray[np.float64]:
        """What each sampled token of each sample of a further part counts, in the unit of the first, [len(part)]."""
        num_before = len(self.samples)
        self.samples += part
        weights = objective.weights([sample.num_sampled for sample in self.samples])
        if not len(weights):
            return weights
        if not num_before:
            self._unit = float(weights[0])
        self.scale = float(weights[0]) / self._unit
        return weights[num_before:] / self.scale
