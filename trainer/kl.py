"""Estimates of KL(policy || reference) from the log-probabilities of sampled tokens (joschu.net/blog/kl-approx)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class KlEstimator(StrEnum):
    """With d = log policy - log reference of a token that the policy sampled."""

    K1 = "k1"
    """d: unbiased, but as a loss its gradient is 0 on average. For rewards."""
    K2 = "k2"
    """d^2 / 2: as a loss of fresh samples it has the gradient of the KL."""
    K3 = "k3"
    """exp(-d) - 1 + d: unbiased, never negative, of low variance; the one of GRPO."""


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """Of each token, [num_tokens]. Differentiable."""
    difference = logprobs - reference_logprobs
    match estimator:
        case KlEstimator.K1:
            return difference
        case KlEstimator.K2:
            return difference.square() / 2
        case KlEstimator.K3:
            # A token that the reference all but excludes must not overflow.
            return (-difference).clamp(max=20.0).exp() - 1 + difference
