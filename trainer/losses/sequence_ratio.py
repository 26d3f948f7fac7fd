"""Losses on the ratio of a whole trajectory, the geometric mean of the ratios of its sampled tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentloop.config.learner import Aggregation
from agentloop.registry.options import Config
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import log_ratio, ratio_metrics, register
from agentloop.trainer.losses.token_ratio import clipped_surrogate

if TYPE_CHECKING:
    from torch import Tensor


class GspoOptions(Config):
    """Options of `gspo`. The bounds are narrow because the mean over many tokens stays close to 1."""

    clip_low: float = Field(default=3e-4, ge=0, le=1)
    """The ratio of a trajectory is clipped to [1 - clip_low, 1 + clip_high]."""
    clip_high: float = Field(default=4e-4, ge=0)


@register("gspo", GspoOptions, tokenwise=False, aggregation=Aggregation.SEQ_MEAN_TOKEN_MEAN)
def gspo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: GspoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the clipped surrogate with the trajectory's ratio (arXiv 2507.18071), in the variant GSPO-token.

    Each token has the value of the trajectory's ratio and the gradient of its own log-probability. With one advantage
    per trajectory this is exactly GSPO; with one per turn, each turn follows its own.
    """
    moved = log_ratio(logprobs, old_logprobs)
    of_sequence = tokens.spread(tokens.means(moved.detach()))
    ratio = (of_sequence + logprobs - logprobs.detach()).exp()
    loss, metrics = clipped_surrogate(ratio, tokens.advantages, options.clip_low, options.clip_high)
    return loss, metrics | ratio_metrics(moved) | {"sequence_ratio": of_sequence.exp()}


class GmpoOptions(Config):
    """Options of `gmpo`."""

    clip_low: float = Field(default=0.4, ge=0)
    """A token's log ratio is clipped to [-clip_low, clip_high]."""
    clip_high: float = Field(default=0.4, ge=0)


@register("gmpo", GmpoOptions, tokenwise=False, aggregation=Aggregation.SEQ_MEAN_TOKEN_MEAN)
def gmpo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: GmpoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -A times the geometric mean of clipped ratios (arXiv 2507.20673), robust to single outlier tokens.

    The log ratio of a token is clipped on the side that its advantage favours, as in PPO.
    """
    import torch

    moved = log_ratio(logprobs, old_logprobs)
    clipped = moved.clamp(-options.clip_low, options.clip_high)
    pessimistic = torch.where(tokens.advantages > 0, torch.minimum(moved, clipped), torch.maximum(moved, clipped))
    ratio = tokens.spread(tokens.means(pessimistic)).exp()
    metrics = {"clip_fraction": (pessimistic != moved).to(moved.dtype), "sequence_ratio": ratio.detach()}
    return -tokens.advantages * ratio, metrics | ratio_metrics(moved)
