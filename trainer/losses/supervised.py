"""Losses that fit given targets, independent of the policy that sampled the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from agentloop.config.learner import Aggregation
from agentloop.registry.options import Config, NoOptions
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import register

if TYPE_CHECKING:
    from torch import Tensor


@register("sft", on_policy=False)
def sft(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: NoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -log p: supervised fine-tuning on the tokens of the loss mask."""
    return -logprobs, {}


class ValueOptions(Config):
    """Options of `value`."""

    clip: float | None = Field(default=0.5, gt=0)
    """Largest change of a value since the start of the batch that still lowers its loss; None: no bound."""


@register("value", ValueOptions, on_policy=False, auxiliary_of="gae")
def value(
    values: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: ValueOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the critic's loss (V - target)^2 / 2, clipped as in PPO (arXiv 1707.06347).

    Values replace log-probabilities: `tokens.advantages` has the targets, and `tokens.old_logprobs` the values before
    the batch.
    """
    import torch

    targets = tokens.advantages
    loss = (values - targets).square() / 2
    if options.clip is None:
        return loss, {}
    old = values.detach() if tokens.old_logprobs is None else tokens.old_logprobs
    near = old + (values - old).clamp(-options.clip, options.clip)
    clipped = (near - targets).square() / 2
    return torch.maximum(loss, clipped), {"clip_fraction": (clipped > loss).to(loss.dtype)}


class ImplicitRewardOptions(Config):
    """Options of `implicit_reward`."""

    beta: float = Field(default=0.05, gt=0)


@register(
    "implicit_reward",
    ImplicitRewardOptions,
    on_policy=False,
    tokenwise=False,
    needs_reference=True,
    aggregation=Aggregation.SEQ_MEAN_TOKEN_MEAN,
    auxiliary_of="prime",
)
def implicit_reward(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: ImplicitRewardOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the cross-entropy of sigmoid(beta * sum log(model / reference)) and the outcome (PRIME, arXiv 2502.01456).

    It trains an implicit process reward model. `tokens.advantages` has the outcome of each trajectory, from 0 to 1.
    Every token has the loss of its trajectory.
    """
    from torch.nn.functional import binary_cross_entropy_with_logits

    assert tokens.reference_logprobs is not None
    scores = options.beta * tokens.sums(logprobs - tokens.reference_logprobs)
    outcomes = tokens.means(tokens.advantages).clamp(0, 1).to(scores.dtype)
    loss = binary_cross_entropy_with_logits(scores, outcomes, reduction="none")
    is_right = ((scores > 0) == (outcomes > 0.5)).to(scores.dtype)
    return tokens.spread(loss), {"accuracy": tokens.spread(is_right)}
