"""Losses whose bounds are on how far a token's probability moved, not on its ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentloop.registry.options import Config
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import log_ratio, ratio_metrics, register

if TYPE_CHECKING:
    from torch import Tensor


class DppoOptions(Config):
    low: float = Field(default=0.2, ge=0)
    """Divergence up to which a token with a negative advantage is pushed down."""
    high: float = Field(default=0.2, ge=0)
    """Up to which one with a positive advantage is pushed up."""
    cap: float = Field(default=20.0, gt=0)
    """Of the importance weight."""


@register("dppo_tv", DppoOptions)
def dppo_tv(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: DppoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """-sg(min(r, cap)) A log p of the tokens whose probability moved by no more than the bound in the direction of
    their advantage; others have none (DPPO-Binary-TV, arXiv 2602.04879).

    A rare token may double its probability freely, a likely one may not lose half of it: the ratio tells neither.
    """
    import torch

    moved = (logprobs.detach().exp() - old_logprobs.exp()).to(logprobs.dtype)
    kept = torch.where(tokens.advantages > 0, moved <= options.high, moved >= -options.low)
    return _weighted(logprobs, old_logprobs, tokens, kept, options.cap)


@register("dppo_kl", DppoOptions)
def dppo_kl(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: DppoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """As `dppo_tv`, with the KL of two outcomes, this token or another one, as the divergence (DPPO-Binary-KL, arXiv
    2602.04879). A token that moved against its advantage is never left out."""
    import torch

    new = logprobs.detach()
    prob, old_prob = new.exp(), old_logprobs.exp()
    others = torch.log((1 - old_prob + _TINY) / (1 - prob + _TINY))
    divergence = old_prob * (old_logprobs - new) + (1 - old_prob) * others
    up = (divergence <= options.high) | (prob <= old_prob)
    down = (divergence <= options.low) | (prob >= old_prob)
    return _weighted(logprobs, old_logprobs, tokens, torch.where(tokens.advantages > 0, up, down), options.cap)


_TINY = 1e-8
"""Where a token is certain."""


def _weighted(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, kept: Tensor, cap: float
) -> tuple[Tensor, dict[str, Tensor]]:
    moved = log_ratio(logprobs, old_logprobs).detach()
    weight = moved.exp().clamp(max=cap) * kept.to(moved.dtype)
    return -weight * tokens.advantages * logprobs, {"clip_fraction": (~kept).to(moved.dtype)} | ratio_metrics(moved)
