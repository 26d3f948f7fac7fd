"""Log-probability and entropy from a block of logits, and the gradient written over the logits.

With z = logits / temperature, p their softmax and t the target:
    logprob = z_t - lse,  entropy = lse - sum_j p_j z_j,  lse = log sum_j exp z_j
    d logprob / d z_j = [j = t] - p_j,  d entropy / d z_j = -p_j (log p_j + entropy)
All sums are float32 for every dtype of the logits. Logits of tokens that are not allowed are overwritten first.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from agentloop.trainer.model.kernels.allowed_tokens import AllowedTokens


class Statistics(NamedTuple):
    """Statistics of logits, float32 [num_tokens] each."""

    logprob: Tensor
    entropy: Tensor
    lse: Tensor


class Vocabulary(Protocol):
    """The functions of this module, also for logits of a part of the vocabulary."""

    def statistics(
        self, logits: Tensor, targets: Tensor, inverse_temperature: float, allowed: AllowedTokens | None = None
    ) -> Statistics: ...

    def gradient_(
        self,
        logits: Tensor,
        targets: Tensor,
        found: Statistics,
        grad_logprob: Tensor,
        grad_entropy: Tensor | None,
        inverse_temperature: float,
        allowed: AllowedTokens | None = None,
    ) -> Tensor: ...


def statistics(
    logits: Tensor, targets: Tensor, inverse_temperature: float, allowed: AllowedTokens | None = None
) -> Statistics:
    """Return the statistics of `logits` [num_tokens, vocab] and `targets` [num_tokens] int64."""
    if allowed is not None:
        allowed.forbid_(logits)
    if _on_triton(logits):
        from agentloop.trainer.model.kernels import softmax_triton

        return Statistics(*softmax_triton.statistics(logits, targets, inverse_temperature))
    z = logits.float() * inverse_temperature
    lse = torch.logsumexp(z, dim=-1)
    # Average the distances to lse; lse minus the average of z would lose digits by cancellation.
    entropy = ((z - lse[:, None]).exp_() * (lse[:, None] - z)).sum(dim=-1)
    return Statistics(z.gather(1, targets[:, None]).squeeze(1) - lse, entropy, lse)


def gradient_(
    logits: Tensor,
    targets: Tensor,
    found: Statistics,
    grad_logprob: Tensor,
    grad_entropy: Tensor | None,
    inverse_temperature: float,
    allowed: AllowedTokens | None = None,
) -> Tensor:
    """Overwrite the logits with their gradient, from the gradients of logprob and entropy, float32 [num_tokens].

    A target of -1 is on another rank, if ranks divide the vocabulary.
    """
    if allowed is not None:
        allowed.forbid_(logits)
    if _on_triton(logits):
        from agentloop.trainer.model.kernels import softmax_triton

        return softmax_triton.gradient_(
            logits, targets, found.lse, found.entropy, grad_logprob, grad_entropy, inverse_temperature
        )
    log_p = logits.float() * inverse_temperature - found.lse[:, None]
    factor = grad_logprob[:, None]
    if grad_entropy is not None:
        factor = factor + grad_entropy[:, None] * (log_p + found.entropy[:, None])
    grad = log_p.exp_() * -factor
    grad.scatter_add_(1, targets.clamp(min=0)[:, None], torch.where(targets >= 0, grad_logprob, 0.0)[:, None])
    return logits.copy_(grad.mul_(inverse_temperature))


class Softcapped:
    """The functions of this module for soft-capped logits: z becomes cap tanh(z / cap), as in Gemma."""

    def __init__(self, cap: float) -> None:
        self._cap = cap

    def statistics(
        self, logits: Tensor, targets: Tensor, inverse_temperature: float, allowed: AllowedTokens | None = None
    ) -> Statistics:
        """Return the statistics of capped logits. The logits do not change."""
        return statistics(self._capped(logits), targets, inverse_temperature, allowed)

    def gradient_(
        self,
        logits: Tensor,
        targets: Tensor,
        found: Statistics,
        grad_logprob: Tensor,
        grad_entropy: Tensor | None,
        inverse_temperature: float,
        allowed: AllowedTokens | None = None,
    ) -> Tensor:
        """Overwrite the logits with their gradient, through the soft cap."""
        capped = self._capped(logits)
        slope = 1 - (capped.float() / self._cap).square()
        grad = gradient_(capped, targets, found, grad_logprob, grad_entropy, inverse_temperature, allowed)
        return logits.copy_(grad * slope)

    def _capped(self, logits: Tensor) -> Tensor:
        return torch.tanh(logits / self._cap).mul_(self._cap)


def _on_triton(logits: Tensor) -> bool:
    return logits.is_cuda
