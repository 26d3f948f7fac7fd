"""One micro-batch as tensors: a packed row, and the predicting position and weight of each trained token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.batch.trained_tokens import TrainedTokens, to_device
from agentloop.trainer.learner.sample_masks import SampleMasks
from agentloop.trainer.model.attention.packed import PackedRow
from agentloop.trainer.model.attention.sequence_parallel import SequenceGroup
from agentloop.trainer.model.image_rows import RowPictures
from agentloop.trainer.model.kernels.allowed_tokens import AllowedTokens
from agentloop.trainer.model.row_layout import NOT_ROUTED, RowLayout, Unit
from agentloop.types.image import PixelFormat


@dataclass(slots=True, frozen=True, eq=False)
class RowPart:
    """One rank's part of a row that several ranks share."""

    num_tokens: int
    places: Tensor
    """Indices of this part's trained tokens among those of the row, int64 [trained tokens of the part]."""
    tokens: TrainedTokens
    """Trained tokens of the whole row."""


@dataclass(slots=True, frozen=True, eq=False)
class MicroBatch:
    """A packed row; `positions`, `targets` and `tokens` have one entry per trained token, in the same order."""

    input_ids: Tensor
    """Tokens of the row, int64 [1, num_tokens]."""
    row: PackedRow
    positions: Tensor
    """Position in the row of the token that predicts each trained token, int64 [num_trained]."""
    targets: Tensor
    """Ids of the trained tokens, int64 [num_trained]."""
    tokens: TrainedTokens
    """Values of the trained tokens that the loss needs."""
    pictures: RowPictures | None = None
    allowed: AllowedTokens | None = None
    """Masks of the constrained among the trained tokens."""
    part: RowPart | None = None
    """This rank's part, if several ranks share the row."""

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        weights: Sequence[float] | np.ndarray,
        device: torch.device,
        *,
        units: Sequence[Unit] | None = None,
        padded: bool = True,
        unseen: PixelFormat | None = None,
        masks: SampleMasks | None = None,
    ) -> MicroBatch:
        """Pack samples into a row.

        `weights` has the weight of each sampled token of a sample. `units` is as in `RowLayout.of`, `padded` as in
        `PackedRow.of`. With `unseen`, a row without images gets one that no token attends to. `masks` computes those of
        constrained turns, which are ignored without it.
        """
        layout = RowLayout.of(samples, units)
        targets = np.concatenate([sample.token_ids[sample.loss_mask] for sample in samples])
        row = PackedRow.of(layout.lengths, device, padded=padded, parents=layout.parents)
        if layout.routed is not None:
            row = replace(row, routed=to_device(layout.routed.transpose(1, 0, 2), device))
        pictures = None
        if layout.rope is not None:
            pictures = RowPictures.of(layout.images, layout.rope, device)
        elif unseen is not None:
            pictures = RowPictures.unseen(unseen, row.position_ids)
        return cls(
            input_ids=to_device(layout.token_ids.astype(np.int64), device)[None],
            row=row,
            positions=to_device(layout.positions, device),
            targets=to_device(targets.astype(np.int64), device),
            tokens=TrainedTokens.of(samples, weights, device),
            pictures=pictures,
            allowed=None if masks is None else masks.of(samples, device),
        )

    def own_part(self, sequence: SequenceGroup) -> MicroBatch:
        """Return this rank's tokens, padded to equal length on all ranks, and the trained tokens that they predict."""
        assert self.pictures is None, "ranks share rows of text only (SequenceGroup.check)"
        num_tokens = self.input_ids.shape[1]
        own, length = sequence.own(num_tokens), sequence.length(num_tokens)
        padding = 0, length - (own.stop - own.start)
        is_here = (self.positions >= own.start) & (self.positions < own.stop)
        places = is_here.nonzero()[:, 0]
        routed = self.row.routed
        row = replace(
            self.row,
            position_ids=F.pad(self.row.position_ids[:, own], padding),
            divided=True,
            num_own=own.stop - own.start,
            routed=None if routed is None else F.pad(routed[:, own], (0, 0, *padding), value=NOT_ROUTED),
        )
        return replace(
            self,
            input_ids=F.pad(self.input_ids[:, own], padding),
            row=row,
            positions=self.positions[places] - own.start,
            targets=self.targets[places],
            tokens=self.tokens.rows(places),
            allowed=None if self.allowed is None else self.allowed.chosen(places.cpu().numpy()),
            part=RowPart(own.stop - own.start, places, self.tokens),
        )
