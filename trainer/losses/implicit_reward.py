"""The loss of an implicit process reward model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentloop.config.learner import Aggregation
from agentloop.registry.options import Config
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import register

if TYPE_CHECKING:
    from torch import Tensor


class ImplicitRewardOptions(Config):
    beta: float = Field(default=0.05, gt=0)


@register(
    "implicit_reward",
    ImplicitRewardOptions,
    on_policy=False,
    tokenwise=False,
    needs_reference=True,
    aggregation=Aggregation.SEQ_MEAN_TOKEN_MEAN,
)
def implicit_reward(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: ImplicitRewardOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross-entropy of sigmoid(beta * sum log(model / reference)) with the outcome of the trajectory, which is its
    `tokens.advantages`, from 0 to 1 (PRIME, arXiv 2502.01456). Every token has the loss of its trajectory."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    assert tokens.reference_logprobs is not None
    scores = options.beta * tokens.sums(logprobs - tokens.reference_logprobs)
    outcomes = tokens.means(tokens.advantages).clamp(0, 1).to(scores.dtype)
    loss = binary_cross_entropy_with_logits(scores, outcomes, reduction="none")
    is_right = ((scores > 0) == (outcomes > 0.5)).to(scores.dtype)
    return tokens.spread(loss), {"accuracy": tokens.spread(is_right)}
