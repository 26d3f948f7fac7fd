"""One micro-batch on one rank: the whole row for attention, and the slice of this context rank for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.learner.megatron.attention import RowParams
from agentloop.trainer.learner.megatron.ranks import Ranks
from agentloop.trainer.learner.micro_batch import MicroBatch
from agentloop.trainer.learner.sample_masks import SampleMasks
from agentloop.trainer.model.kernels.allowed_tokens import AllowedTokens
from agentloop.trainer.model.row_layout import Unit


@dataclass(slots=True, frozen=True, eq=False)
class RankMicroBatch:
    """A row and this rank's slice of it, which is the whole row without context parallelism."""

    input_ids: Tensor
    """Tokens of the slice, int64 [1, tokens of the slice]."""
    positions: Tensor
    """Position of each token in its sequence, int64 [1, tokens of the slice]."""
    row: RowParams
    own: slice
    """Range of the row's trained tokens that this slice predicts."""
    places: Tensor
    """Position in the slice of the token that predicts each trained token, int64 [own trained tokens]."""
    targets: Tensor
    """Ids of the trained tokens, int64 [own trained tokens]."""
    tokens: TrainedTokens
    """Trained tokens of the whole row."""
    num_tokens: int
    """Number of tokens of the row without padding."""
    allowed: AllowedTokens | None = None
    """Masks of the constrained among the own trained tokens."""

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        weights: Sequence[float] | np.ndarray,
        units: Sequence[Unit],
        device: torch.device,
        ranks: Ranks,
        kernel: str,
        masks: SampleMasks,
    ) -> RankMicroBatch:
        """Pack samples; `weights` has the weight of each sampled token of a sample.

        A sequence without trained tokens pads the row until all ranks have the same number of tokens.
        """
        num_tokens = sum(unit.num_tokens for unit in units)
        if missing := -num_tokens % (ranks.context * ranks.tensor):
            samples = [*samples, _padding(missing, samples[0])]
            weights = [*weights, 0.0]
            units = [*units, Unit([len(samples) - 1], 0, missing)]
        whole = MicroBatch.of(samples, weights, device, units=units, padded=kernel == "sdpa", masks=masks)
        size = whole.input_ids.shape[1] // ranks.context
        here = slice(ranks.context_rank * size, (ranks.context_rank + 1) * size)
        own = slice(0, len(whole.positions))
        if ranks.context > 1:
            # Without shared prefixes, trained tokens are in the order of the row.
            first, last = torch.searchsorted(whole.positions, torch.tensor([here.start, here.stop], device=device))
            own = slice(int(first), int(last))
        return cls(
            input_ids=whole.input_ids[:, here],
            positions=whole.row.position_ids[:, here],
            row=RowParams(row=whole.row, kernel=kernel),
            own=own,
            places=whole.positions[own] - here.start,
            targets=whole.targets[own],
            tokens=whole.tokens,
            num_tokens=num_tokens,
            allowed=None if whole.allowed is None else whole.allowed.rows(own),
        )


def _padding(length: int, like: Sample) -> Sample:
    """Return a sample without trained tokens that has the same arrays as `like`."""
    none = np.zeros(0, np.float32)
    return Sample(
        token_ids=np.zeros(length, np.int32),
        loss_mask=np.zeros(length, np.bool_),
        logprobs=np.zeros(length, np.float32),
        versions=np.full(length, -1, np.int32),
        advantage=0.0,
        old_logprobs=None if like.old_logprobs is None else none,
        reference_logprobs=None if like.reference_logprobs is None else none,
        rival=None if like.rival is None else 0.0,
    )
