"""A loss whose bounds on the ratio are smooth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentloop.config.learner import Aggregation
from agentloop.registry.options import Config
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import log_ratio, ratio_metrics, register

if TYPE_CHECKING:
    from torch import Tensor


class SapoOptions(Config):
    temperature_positive: float = Field(default=1.0, gt=0)
    """Of tokens with a positive advantage: the higher, the sooner the gradient fades away from ratio 1."""
    temperature_negative: float = Field(default=1.05, gt=0)
    """Of the others; higher, since their gradients spread over the vocabulary."""


@register("sapo", SapoOptions, aggregation=Aggregation.SEQ_MEAN_TOKEN_MEAN)
def sapo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: SapoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Soft gate instead of a clip (arXiv 2511.20347): -A sigmoid(t (r - 1)) 4 / t, whose slope at r = 1 is -A."""
    import torch

    moved = log_ratio(logprobs, old_logprobs)
    temperature = torch.full_like(tokens.advantages, options.temperature_negative)
    temperature = temperature.masked_fill(tokens.advantages > 0, options.temperature_positive)
    gate = torch.sigmoid(temperature * (moved.exp() - 1)) * 4 / temperature
    return -tokens.advantages * gate, ratio_metrics(moved)
