"""The loss of a critic, whose values take the place of log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentloop.registry.options import Config
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import register

if TYPE_CHECKING:
    from torch import Tensor


class ValueOptions(Config):
    clip: float | None = Field(default=0.5, gt=0)
    """A value that moves further than this from what it was before the batch gains nothing more; None: no bound."""


@register("value", ValueOptions, on_policy=False)
def value(
    values: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: ValueOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """(V - target)^2 / 2, clipped as in PPO (arXiv 1707.06347): `tokens.advantages` are the targets and
    `tokens.old_logprobs` the values before the batch."""
    import torch

    targets = tokens.advantages
    loss = (values - targets).square() / 2
    if options.clip is None:
        return loss, {}
    old = values.detach() if tokens.old_logprobs is None else tokens.old_logprobs
    near = old + (values - old).clamp(-options.clip, options.clip)
    clipped = (near - targets).square() / 2
    return torch.maximum(loss, clipped), {"clip_fraction": (clipped > loss).to(loss.dtype)}
