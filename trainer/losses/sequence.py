"""Losses whose ratio is that of a whole trajectory: the geometric mean of the ratios of its sampled tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentloop.config.learner import Aggregation
from agentloop.registry.options import Config
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import log_ratio, ratio_metrics, register
from agentloop.trainer.losses.clipped import clipped_surrogate

if TYPE_CHECKING:
    from torch import Tensor


class GspoOptions(Config):
    clip_low: float = Field(default=3e-4, ge=0, le=1)
    """The ratio of a trajectory is clipped at 1 - clip_low: means over many tokens stay close to 1."""
    clip_high: float = Field(default=4e-4, ge=0)


@register("gspo", GspoOptions, tokenwise=False, aggregation=Aggregation.SEQ_MEAN_TOKEN_MEAN)
def gspo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: GspoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate of the trajectory's ratio (arXiv 2507.18071), in the form GSPO-token.

    Each token has the value of the whole trajectory's ratio and the gradient of its own log-probability. With one
    advantage for a trajectory that is GSPO exactly; with one for each turn every turn is pushed by its own.
    """
    moved = log_ratio(logprobs, old_logprobs)
    of_sequence = tokens.spread(tokens.means(moved.detach()))
    ratio = (of_sequence + logprobs - logprobs.detach()).exp()
    loss, metrics = clipped_surrogate(ratio, tokens.advantages, options.clip_low, options.clip_high)
    return loss, metrics | ratio_metrics(moved) | {"sequence_ratio": of_sequence.exp()}


class GmpoOptions(Config):
    clip_low: float = Field(default=0.4, ge=0)
    """The log of a token's ratio is clipped at -clip_low."""
    clip_high: float = Field(default=0.4, ge=0)


@register("gmpo", GmpoOptions, tokenwise=False, aggregation=Aggregation.SEQ_MEAN_TOKEN_MEAN)
def gmpo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: GmpoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """-A times the geometric mean of clipped ratios (arXiv 2507.20673): one token far off hardly moves it.

    A token's log ratio is clipped on the side on which its advantage would gain, as in PPO.
    """
    import torch

    moved = log_ratio(logprobs, old_logprobs)
    clipped = moved.clamp(-options.clip_low, options.clip_high)
    pessimistic = torch.where(tokens.advantages > 0, torch.minimum(moved, clipped), torch.maximum(moved, clipped))
    ratio = tokens.spread(tokens.means(pessimistic)).exp()
    metrics = {"clip_fraction": (pessimistic != moved).to(moved.dtype), "sequence_ratio": ratio.detach()}
    return -tokens.advantages * ratio, metrics | ratio_metrics(moved)
