"""Trained tokens made from plain numbers, in float64, for tests of objectives."""

from collections.abc import Sequence

import torch
from torch import Tensor

from agentloop.trainer.batch.trained_tokens import TrainedTokens


def doubles(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tokens(
    counts: Sequence[int],
    *,
    rollout: Sequence[float] | None = None,
    advantages: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    ages: Sequence[int] | None = None,
    old: Sequence[float] | None = None,
    reference: Sequence[float] | None = None,
) -> TrainedTokens:
    """`counts` of each trajectory; everything else is one number a token, 0 where not given, weights 1."""
    num = sum(counts)
    return TrainedTokens(
        rollout_logprobs=doubles(rollout or [0.0] * num),
        ages=torch.tensor(ages or [0] * num, dtype=torch.int32),
        advantages=doubles(advantages or [0.0] * num),
        weights=doubles(weights or [1.0] * num),
        sequences=torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)),
        counts=torch.tensor(counts),
        old_logprobs=None if old is None else doubles(old),
        reference_logprobs=None if reference is None else doubles(reference),
    )
