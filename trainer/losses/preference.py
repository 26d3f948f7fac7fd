"""Losses that compare the two answers of a preference pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agentloop.config.learner import Aggregation
from agentloop.registry.options import Config
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.base import register

if TYPE_CHECKING:
    from torch import Tensor


class DpoOptions(Config):
    """Options of `dpo`."""

    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the reference."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Assumed fraction of pairs in the wrong order (conservative DPO)."""


@register(
    "dpo",
    DpoOptions,
    on_policy=False,
    tokenwise=False,
    needs_reference=True,
    pairwise=True,
    aggregation=Aggregation.SEQ_MEAN_TOKEN_SUM,
)
def dpo(
    logprobs: Tensor, old_logprobs: Tensor, tokens: TrainedTokens, options: DpoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -log sigmoid(beta * margin) of each pair, with the sigmoid loss of DPO (arXiv 2305.18290).

    The margin is log(policy / reference) of the better answer minus that of the worse answer, each summed over its
    tokens. `tokens.advantages` is 1 for the better answer and -1 for the worse. `tokens.rivals` has the log-ratio of
    the other answer under the same weights, so the answers of a pair may be in different micro-batches. Each answer has
    half of the loss value and, since its rival is a constant, the whole gradient of its tokens.
    """
    from torch.nn.functional import logsigmoid

    assert tokens.reference_logprobs is not None
    assert tokens.rivals is not None
    signs, rivals = tokens.means(tokens.advantages), tokens.means(tokens.rivals)
    margins = options.beta * signs * (tokens.sums(logprobs - tokens.reference_logprobs) - rivals)
    smoothing = options.label_smoothing
    loss = -(1 - smoothing) * logsigmoid(margins) - smoothing * logsigmoid(-margins)
    return tokens.spread((loss - loss.detach() / 2) / tokens.counts), {}


def log_ratios(
    logprobs: Sequence[NDArray[np.float32]], reference: Sequence[NDArray[np.float32] | None]
) -> NDArray[np.float64]:
    """Return log(policy / reference) of each answer, summed over its tokens, [num_answers]."""
    pairs = zip(logprobs, reference, strict=True)
    return np.array([np.sum(own - (0 if other is None else other), dtype=np.float64) for own, other in pairs])


def pair_metrics(log_ratios: NDArray[np.float64], is_better: Sequence[bool], options: DpoOptions) -> dict[str, float]:
    """Return the loss and the implicit rewards, beta * log(policy / reference), of pairs.

    `log_ratios` [num_answers] are sums over tokens; the two answers of a pair are adjacent.
    """
    better = np.asarray(is_better)
    rewards = options.beta * log_ratios
    margins = rewards[better] - rewards[~better]
    smoothing = options.label_smoothing
    loss = (1 - smoothing) * np.logaddexp(0, -margins) + smoothing * np.logaddexp(0, margins)
    return {
        "loss": float(loss.mean()),
        "accuracy": float((margins > 0).mean()),
        "margin": float(margins.mean()),
        "better_reward": float(rewards[better].mean()),
        "worse_reward": float(rewards[~better].mean()),
    }
