"""One micro-batch on one rank: the whole row for attention, this context rank's slice of it for everything else."""

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
from agentloop.trainer.model.row_layout import Unit


@dataclass(slots=True, frozen=True, eq=False)
class RankMicroBatch:
    """Without context parallelism the slice is the row."""

    input_ids: Tensor
    """[1, tokens of the slice], int64."""
    positions: Tensor
    """[1, tokens of the slice], int64; each token's place in its sequence."""
    row: RowParams
    own: slice
    """The trained tokens that this slice predicts, of those of the row."""
    places: Tensor
    """[own trained tokens], int64; in the slice, of the token before each."""
    targets: Tensor
    """[own trained tokens], int64."""
    tokens: TrainedTokens
    """Of the whole row."""
    num_tokens: int
    """Of the row, without what it is filled up with."""

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        weights: Sequence[float] | np.ndarray,
        units: Sequence[Unit],
        device: torch.device,
        ranks: Ranks,
        kernel: str,
    ) -> RankMicroBatch:
        """`weights` has what each sampled token of a sample counts. The row is filled up until all ranks have as many
        tokens, by a sequence of its own that nothing is trained on."""
        num_tokens = sum(unit.num_tokens for unit in units)
        if filling := -num_tokens % (ranks.context * ranks.tensor):
            samples = [*samples, _filler(filling, samples[0])]
            weights = [*weights, 0.0]
            units = [*units, Unit([len(samples) - 1], 0, filling)]
        whole = MicroBatch.of(samples, weights, device, units=units, padded=kernel == "sdpa")
        size = whole.input_ids.shape[1] // ranks.context
        here = slice(ranks.context_rank * size, (ranks.context_rank + 1) * size)
        own = slice(0, len(whole.positions))
        if ranks.context > 1:
            # Without shared prefixes the trained tokens are in the order of the row.
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
        )


def _filler(length: int, like: Sample) -> Sample:
    """Nothing of it is trained; it has the arrays that the others have."""
    none = np.zeros(0, np.float32)
    return Sample(
        token_ids=np.zeros(length, np.int32),
        loss_mask=np.zeros(length, np.bool_),
        logprobs=np.zeros(length, np.float32),
        versions=np.full(length, -1, np.int32),
        advantage=0.0,
        old_logprobs=None if like.old_logprobs is None else none,
        reference_logprobs=None if like.reference_logprobs is None else none,
    )
