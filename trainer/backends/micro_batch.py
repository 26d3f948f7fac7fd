"""One micro-batch as tensors: a packed row, and for each trained token where it is predicted and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentloop.trainer.attention import PackedRow
from agentloop.trainer.batch import Sample


@dataclass(slots=True, frozen=True, eq=False)
class MicroBatch:
    """All but `input_ids` and `row` have one entry a trained token, [num_trained], in the order of the row."""

    input_ids: Tensor
    """[1, num_tokens] int64."""
    row: PackedRow
    positions: Tensor
    """int64; in the row, of the token before each trained one: it predicts it."""
    targets: Tensor
    """int64; the trained tokens."""
    rollout_logprobs: Tensor
    """Under the policy that sampled, as the engine computed them."""
    old_logprobs: Tensor | None
    """Under the same policy as the learner computed them before the first update, where it did."""
    advantages: Tensor
    weights: Tensor
    """float32; the loss of the mini-batch is the sum of loss * weight."""

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        weights: Sequence[float] | np.ndarray,
        device: torch.device,
        *,
        old_logprobs: Sequence[np.ndarray] | None = None,
        padded: bool = True,
    ) -> MicroBatch:
        """Pack samples; `weights` has what each sampled token of a sample counts; `padded` as in `PackedRow.of`."""
        lengths = [len(sample) for sample in samples]
        counts = [sample.num_sampled for sample in samples]
        ids = np.concatenate([sample.token_ids for sample in samples])
        trained = np.flatnonzero(np.concatenate([sample.loss_mask for sample in samples]))
        logprobs = np.concatenate([sample.logprobs for sample in samples])[trained]
        advantages = np.repeat(np.array([sample.advantage for sample in samples], np.float32), counts)
        repeated = np.repeat(np.asarray(weights, np.float32), counts)

        def send(array: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

        return cls(
            input_ids=send(ids.astype(np.int64))[None],
            row=PackedRow.of(lengths, device, padded=padded),
            # A first token is never a trained one (see Sample), so this stays within the sequence.
            positions=send(trained.astype(np.int64) - 1),
            targets=send(ids[trained].astype(np.int64)),
            rollout_logprobs=send(logprobs),
            old_logprobs=None if old_logprobs is None else send(np.concatenate(old_logprobs)),
            advantages=send(advantages),
            weights=send(repeated),
        )
