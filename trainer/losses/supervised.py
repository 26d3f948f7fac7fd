"""Losses that learn from given trajectories, whoever wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop.registry.registry import NoOptions
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import register

if TYPE_CHECKING:
    from torch import Tensor


@register("sft", on_policy=False)
def sft(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: NoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Negative log-likelihood: supervised training on the tokens of the loss mask."""
    return -logprobs, {}
