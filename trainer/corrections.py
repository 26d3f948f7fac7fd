"""Corrections for the mismatch between the engine, which sampled, and the learner, which computes gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def truncated_importance_weights(learner_logprobs: Tensor, rollout_logprobs: Tensor, cap: float) -> Tensor:
    """min(p_learner / p_engine, cap) of each token, detached, [num_tokens].

    Both are of the weights that sampled (before any update on the batch), so what differs is kernels and precision.
    Truncation bounds the variance: token-level TIS, fengyao.notion.site/off-policy-rl; Ionides, 2008.
    """
    return (learner_logprobs - rollout_logprobs).detach().exp().clamp(max=cap)
