"""Losses of importance ratios with hard bounds, and the one without ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentloop.registry.options import Config
from agentloop.registry.registry import NoOptions
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import log_ratio, ratio_metrics, register

if TYPE_CHECKING:
    from torch import Tensor


class PpoOptions(Config):
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The ratio is clipped at 1 - clip_low."""
    clip_high: float = Field(default=0.28, ge=0)
    """The ratio is clipped at 1 + clip_high; above clip_low it leaves rare tokens room to grow (DAPO's clip-higher)."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bounds the loss of a token with a negative advantage at dual_clip * |advantage| (arXiv 1912.09729); None: no
    bound."""


@register("ppo", PpoOptions)
def ppo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: PpoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate of PPO (arXiv 1707.06347), with clip-higher (arXiv 2503.14476) and dual clip."""
    import torch

    moved = log_ratio(logprobs, old_logprobs)
    loss, metrics = clipped_surrogate(moved.exp(), tokens.advantages, options.clip_low, options.clip_high)
    if options.dual_clip is not None:
        bound = -tokens.advantages * options.dual_clip
        is_bound = (tokens.advantages < 0) & (loss > bound)
        loss = torch.where(is_bound, bound, loss)
        metrics["dual_clip_fraction"] = is_bound.to(loss.dtype)
    return loss, metrics | ratio_metrics(moved)


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """max(-A r, -A clip(r)): no gain from leaving [1 - clip_low, 1 + clip_high], [num_trained]."""
    import torch

    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(plain, clipped), {"clip_fraction": (clipped > plain).to(plain.dtype)}


class CispoOptions(Config):
    clip_low: float = Field(default=1.0, ge=0, le=1)
    """The weight is at least 1 - clip_low; at 1 there is no lower bound, as in the paper."""
    clip_high: float = Field(default=4.0, ge=0)
    """The weight is at most 1 + clip_high."""


@register("cispo", CispoOptions)
def cispo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: CispoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """REINFORCE with a clipped importance weight (MiniMax-M1, arXiv 2506.13585): -sg(clip(r)) A log p.

    Every token keeps a gradient; clipping bounds what it counts.
    """
    moved = log_ratio(logprobs, old_logprobs).detach()
    ratio = moved.exp()
    weight = ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    metrics = {"clip_fraction": (weight != ratio).to(ratio.dtype)}
    return -weight * tokens.advantages * logprobs, metrics | ratio_metrics(moved)


@register("reinforce")
def reinforce(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: NoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """-A log p (Williams, 1992): the policy gradient where one update follows each batch; it bounds nothing."""
    return -tokens.advantages * logprobs, ratio_metrics(log_ratio(logprobs, old_logprobs))
