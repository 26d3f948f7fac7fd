"""Estimators of KL(policy || reference) from the log-probabilities of sampled tokens (joschu.net/blog/kl-approx)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.config.learner import KlEstimator

if TYPE_CHECKING:
    from torch import Tensor


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """Return the KL estimate of each token, [num_tokens]; it is differentiable."""
    difference = logprobs - reference_logprobs
    match estimator:
        case KlEstimator.K1:
            return difference
        case KlEstimator.K2:
            return difference.square() / 2
        case KlEstimator.K3:
            # The clamp prevents overflow; log(reference / policy) has no upper bound.
            return (-difference).clamp(max=20.0).exp() - 1 + difference
