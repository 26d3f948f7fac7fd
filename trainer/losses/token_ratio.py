"""Losses on the importance ratio of each token, with hard or soft bounds, and the plain policy gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentloop.config.learner import Aggregation
from agentloop.registry.options import Config, NoOptions
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import log_ratio, ratio_metrics, register

if TYPE_CHECKING:
    from torch import Tensor


class PpoOptions(Config):
    """Options of `ppo`: the ratio is clipped to [1 - clip_low, 1 + clip_high]."""

    clip_low: float = Field(default=0.2, ge=0, le=1)
    clip_high: float = Field(default=0.28, ge=0)
    """A value above clip_low gives rare tokens room to grow (DAPO's clip-higher)."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bound on the loss at negative advantages, in units of |advantage| (arXiv 1912.09729); None: no bound."""


@register("ppo", PpoOptions)
def ppo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: PpoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return PPO's clipped surrogate (arXiv 1707.06347) with clip-higher (arXiv 2503.14476) and dual clip."""
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
    """Return max(-A r, -A clip(r)) with r clipped to [1 - clip_low, 1 + clip_high], and metrics, [num_trained]."""
    import torch

    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(plain, clipped), {"clip_fraction": (clipped > plain).to(plain.dtype)}


class CispoOptions(Config):
    """Options of `cispo`: the weight is clipped to [1 - clip_low, 1 + clip_high]."""

    clip_low: float = Field(default=1.0, ge=0, le=1)
    """At 1 there is no lower bound, as in the paper."""
    clip_high: float = Field(default=4.0, ge=0)


@register("cispo", CispoOptions)
def cispo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: CispoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -sg(clip(r)) A log p: REINFORCE with a clipped importance weight (MiniMax-M1, arXiv 2506.13585).

    Every token keeps a gradient; clipping only bounds its weight.
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
    """Return -A log p (Williams, 1992), without bounds: the policy gradient if each batch has a single update."""
    return -tokens.advantages * logprobs, ratio_metrics(log_ratio(logprobs, old_logprobs))


class SapoOptions(Config):
    """Options of `sapo`. With a higher temperature the gradient decays faster away from ratio 1."""

    temperature_positive: float = Field(default=1.0, gt=0)
    """Temperature of tokens with a positive advantage."""
    temperature_negative: float = Field(default=1.05, gt=0)
    """Temperature of the others; higher, because their gradients spread over the vocabulary."""


@register("sapo", SapoOptions, aggregation=Aggregation.SEQ_MEAN_TOKEN_MEAN)
def sapo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: SapoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -A sigmoid(t (r - 1)) 4 / t, a soft gate (arXiv 2511.20347); its slope at r = 1 is -A."""
    import torch

    moved = log_ratio(logprobs, old_logprobs)
    temperature = torch.full_like(tokens.advantages, options.temperature_negative)
    temperature = temperature.masked_fill(tokens.advantages > 0, options.temperature_positive)
    gate = torch.sigmoid(temperature * (moved.exp() - 1)) * 4 / temperature
    return -tokens.advantages * gate, ratio_metrics(moved)
