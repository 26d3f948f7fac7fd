"""What a sequence costs to train on, from a model's config, and put right by measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentloop.trainer.planning.flops import ModelFlops, window_pairs
from agentloop.trainer.planning.vision import VisionFlops

_MICRO_BATCH_TOKENS = 512
"""What a micro-batch costs beyond its tokens, as so many of them: weights are read three times, kernels launched."""


class Measured(NamedTuple):
    """A micro-batch, as far as its time depends on it."""

    tokens: int
    pair_cost: float
    """Of the pairs of its tokens, by the model that is fitted."""


@dataclass(slots=True, frozen=True)
class CostModel:
    """Cost of one sequence, forward and backward: per_token * n + per_token_pair * n^2, and what windows add.

    FLOPs from a config, seconds after `refined`.
    """

    per_token: float
    per_token_pair: float
    per_window_pair: float = 0.0
    """Times twice the pairs of a causal mask that are within the window."""
    window: int = 0
    per_micro_batch: float = 0.0
    """Of a micro-batch however short it is."""
    vision: VisionFlops | None = None
    """Of images, in FLOPs of a forward pass."""
    per_vision_flop: float = 3.0

    def __call__(self, length: int, image_patches: Sequence[int] = ()) -> float:
        """Of one sequence; `image_patches` has the patches of each image in it."""
        cost = self.per_token * length + self.per_token_pair * length * length
        if self.window:
            cost += self.per_window_pair * 2 * window_pairs(length, self.window)
        return cost + self.images(image_patches)

    def images(self, image_patches: Sequence[int]) -> float:
        """Of images alone."""
        return 0.0 if self.vision is None else self.per_vision_flop * self.vision.forward(image_patches)

    def shared(self, prefix: int, lengths: Sequence[int]) -> float:
        """Of sequences whose first `prefix` tokens are the same and computed once; `lengths` include them."""
        return sum(map(self, lengths)) - (len(lengths) - 1) * self(prefix)

    @classmethod
    def from_config(cls, hf_config: Any, *, head_fraction: float = 1.0) -> CostModel:
        """FLOPs, from a transformers config; `head_fraction` is the share of tokens whose logits are computed.

        The backward counts as two forwards. See `ModelFlops` for what is counted.
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

    def refined(self, lengths_of_rows: Sequence[Sequence[int]], seconds: Sequence[float]) -> CostModel:
        """The same model in seconds, its coefficients fitted to measured micro-batches without images.

        `lengths_of_rows[i]` are the sequences of the micro-batch that took `seconds[i]`. Least squares of the relative
        errors, with little weight for those far off (Huber, 1964): a first call that compiles, or a collection of
        garbage, does not count. Measurements that cannot tell the terms apart leave their ratio as it was. Raises
        `ValueError` where there is none.
        """
        rows = [
            Measured(sum(row), sum(map(self, row)) - sum(row) * self.per_token) for row in lengths_of_rows if len(row)
        ]
        return self.fitted(rows, [time for row, time in zip(lengths_of_rows, seconds, strict=True) if len(row)])

    def fitted(self, rows: Sequence[Measured], seconds: Sequence[float]) -> CostModel:
        """As `refined`, for micro-batches of which no more is known."""
        kept = [(row, time) for row, time in zip(rows, seconds, strict=True) if time > 0]
        if not kept:
            raise ValueError("a cost model is refined by at least one micro-batch with sequences and a time above 0")
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
"""Relative error above which a measurement counts less."""
_PRIOR = 4e-4
"""Weight of the old coefficients: errors of 2% in the measurements, of 100% in the coefficients."""


def _robust_factors(terms: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factors f >= 0 that make each row of terms @ f about 1, near `expected` where the rows do not say."""
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
    """Weighted ridge regression; terms that would be negative are left out, most negative first."""
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
