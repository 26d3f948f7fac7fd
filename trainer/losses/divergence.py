"""Losses that bound the divergence of token probabilities instead of the ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentloop.registry.options import Config
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import log_ratio, ratio_metrics, register

if TYPE_CHECKING:
    from torch import Tensor


class DppoOptions(Config):
    """Options of `dppo_tv` and `dppo_kl`."""

    low: float = Field(default=0.2, ge=0)
    """Largest divergence at which a token with a negative advantage is still pushed down."""
    high: float = Field(default=0.2, ge=0)
    """Largest divergence at which a token with a positive advantage is still pushed up."""
    cap: float = Field(default=20.0, gt=0)
    """Upper bound of the importance weight."""


@register("dppo_tv", DppoOptions)
def dppo_tv(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: DppoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -sg(min(r, cap)) A log p, masked by the change of probability (DPPO-Binary-TV, arXiv 2602.04879).

    A token has a loss if its probability moved by at most the bound in the direction of its advantage. So a rare token
    may double its probability, while a likely token may not lose half of it; a bound on the ratio treats both alike.
    """
    import torch

    moved = (logprobs.detach().exp() - old_logprobs.exp()).to(logprobs.dtype)
    kept = torch.where(tokens.advantages > 0, moved <= options.high, moved >= -options.low)
    return _weighted(logprobs, old_logprobs, tokens, kept, options.cap)


@register("dppo_kl", DppoOptions)
def dppo_kl(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: DppoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of `dppo_tv`, masked by a binary KL instead (DPPO-Binary-KL, arXiv 2602.04879).

    The divergence is the KL over two outcomes: this token or any other. A token that moved against its advantage always
    has a loss.
    """
    import torch

    new = logprobs.detach()
    prob, old_prob = new.exp(), old_logprobs.exp()
    # Rounding may put the probability of a certain token above 1.
    others, old_others = (1 - prob).clamp(min=0), (1 - old_prob).clamp(min=0)
    divergence = old_prob * (old_logprobs - new) + old_others * torch.log((old_others + _TINY) / (others + _TINY))
    up = (divergence <= options.high) | (prob <= old_prob)
    down = (divergence <= options.low) | (prob >= old_prob)
    return _weighted(logprobs, old_logprobs, tokens, torch.where(tokens.advantages > 0, up, down), options.cap)


_TINY = 1e-8
"""Constant added to 1 - p, which is 0 for certain tokens."""


def _weighted(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, kept: Tensor, cap: float
) -> tuple[Tensor, dict[str, Tensor]]:
    moved = log_ratio(logprobs, old_logprobs).detach()
    weight = moved.exp().clamp(max=cap) * kept.to(moved.dtype)
    return -weight * tokens.advantages * logprobs, {"clip_fraction": (~kept).to(moved.dtype)} | ratio_metrics(moved)
