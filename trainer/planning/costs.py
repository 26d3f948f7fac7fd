"""`CostModel`: the cost of training on a sequence, from a model's config, corrected by measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentloop.trainer.planning.flops import ModelFlops, window_pairs
from agentloop.trainer.planning.vision import VisionFlops

_MICRO_BATCH_TOKENS = 512
"""Fixed cost of a micro-batch in tokens: weights are read three times, and kernels are launched."""


class Measured(NamedTuple):
    """The properties of a micro-batch that its time depends on."""

    tokens: int
    pair_cost: float
    """Cost of its token pairs according to the unfitted model."""


@dataclass(slots=True, frozen=True)
class CostModel:
    """Cost of one sequence, forward and backward: per_token * n + per_token_pair * n^2 + the pairs within windows.

    Costs are FLOPs after `from_config` and seconds after `fitted`.
    """

    per_token: float
    per_token_pair: float
    per_window_pair: float = 0.0
    """Factor of twice the number of causal pairs within the window."""
    window: int = 0
    per_micro_batch: float = 0.0
    """Fixed cost of a micro-batch, in addition to its sequences."""
    vision: VisionFlops | None = None
    """FLOPs of the vision tower's forward pass."""
    per_vision_flop: float = 3.0

    def __call__(self, length: int, image_patches: Sequence[int] = ()) -> float:
        """Return the cost of one sequence; `image_patches` has the number of patches of each of its images."""
        cost = self.per_token * length + self.per_token_pair * length * length
        if self.window:
            cost += self.per_window_pair * 2 * window_pairs(length, self.window)
        return cost + self.images(image_patches)

    def images(self, image_patches: Sequence[int]) -> float:
        """Return the cost of images alone."""
        return 0.0 if self.vision is None else self.per_vision_flop * self.vision.forward(image_patches)

    def shared(self, prefix: int, lengths: Sequence[int]) -> float:
        """Return the cost of sequences whose shared first `prefix` tokens are computed once; `lengths` include them."""
        return sum(map(self, lengths)) - (len(lengths) - 1) * self(prefix)

    @classmethod
    def from_config(cls, hf_config: Any, *, head_fraction: float = 1.0) -> CostModel:
        """Return the cost in FLOPs from a transformers config, counting the backward pass as two forward passes.

        `head_fraction` is the fraction of tokens with logits. `ModelFlops` lists the operations that count.
        """
        flops = ModelFlops.from_config(hf_config)
        per_token = 3 * (flops.per_token + head_fraction * flops.per_head_token)
        return cls(
            per_token=per_token,
            per_token_pair=3 * flops.per_pair / 2,
            per_window_pair=3 * flops.per_window_pair / 2,
            window=flops.window,
            per_micro_batch=_MICRO_BATCH_TOKENS * per_token,
            vision=flops.vision,
        )

    def fitted(self, rows: Sequence[Measured], seconds: Sequence[float]) -> CostModel:
        """Return the model in seconds, with coefficients fitted to measured micro-batches without images.

        `rows[i]` took `seconds[i]`. The fit is least squares of relative errors, with little weight for outliers
        (Huber, 1964) such as a first call that compiles. If the measurements do not separate two terms, their ratio is
        kept. Raises `ValueError` without any measurement.
        """
        kept = [(row, time) for row, time in zip(rows, seconds, strict=True) if time > 0]
        if not kept:
            raise ValueError("refining a cost model needs at least one micro-batch with sequences and a time above 0")
        taken = np.array([time for _, time in kept])
        tokens = np.array([row.tokens for row, _ in kept], float) * self.per_token
        pairs = np.array([row.pair_cost for row, _ in kept])
        scale = float(np.median(taken / (tokens + pairs + self.per_micro_batch)))
        typical = float(np.median(taken))
        terms = np.stack([tokens * scale, pairs * scale, np.full(len(kept), typical)], axis=1) / taken[:, None]
        expected = np.array([1.0, 1.0, self.per_micro_batch * scale / typical])
        token, pair, each = _robust_factors(terms, expected).tolist()
        return replace(
            self,
            per_token=self.per_token * scale * token,
            per_token_pair=self.per_token_pair * scale * pair,
            per_window_pair=self.per_window_pair * scale * pair,
            per_micro_batch=typical * each,
            per_vision_flop=self.per_vision_flop * scale * token,
        )


_OUTLIER = 0.05
"""Relative error above which a measurement has less weight."""
_PRIOR = 4e-4
"""Weight of the old coefficients, for assumed errors of 2% in measurements and of 100% in coefficients."""


def _robust_factors(terms: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return factors f >= 0 with terms @ f close to 1, and close to `expected` if the terms do not determine them."""
    weights = np.ones(len(terms))
    factors = expected
    for _ in range(20):
        factors = _factors(terms, weights, expected)
        errors = np.abs(terms @ factors - 1)
        weights = _OUTLIER / np.maximum(errors, _OUTLIER)
    return factors


def _factors(
    terms: NDArray[np.float64], weights: NDArray[np.float64], expected: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Solve the weighted ridge regression, setting negative factors to 0, the most negative first."""
    active = np.ones(len(expected), bool)
    while True:
        chosen = terms[:, active]
        normal = (chosen * weights[:, None]).T @ chosen + _PRIOR * np.eye(int(active.sum()))
        found = np.linalg.solve(normal, chosen.T @ weights + _PRIOR * expected[active])
        if (found >= 0).all():
            factors = np.zeros(len(expected))
            factors[active] = found
            return factors
        active[np.flatnonzero(active)[found.argmin()]] = False
