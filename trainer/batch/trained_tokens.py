"""`TrainedTokens`: what is known of the trained tokens of a micro-batch before the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentloop.trainer.batch.train_batch import Sample

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_COUNTS = ("counts", "sizes")
"""What has one entry a trajectory."""


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A tensor there; it shares the memory of a contiguous array where that is the host."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


@dataclass(slots=True, frozen=True, eq=False)
class TrainedTokens:
    """One entry a sampled token, [num_trained], those of a trajectory side by side: it is never split over
    micro-batches, so that what a loss sums within one does not depend on the plan."""

    rollout_logprobs: Tensor
    """float32; under the policy that sampled, as the engine computed them."""
    ages: Tensor
    """int32; how many versions older the policy that sampled is than the weights before the batch, 0 or more."""
    advantages: Tensor
    """float32."""
    weights: Tensor
    """float32; the loss of the mini-batch is the sum of loss * weight."""
    sequences: Tensor
    """int64; which trajectory of the micro-batch a token is of, ascending from 0."""
    counts: Tensor
    """[num_sequences] int64; the trained tokens of each trajectory."""
    old_logprobs: Tensor | None = None
    """float32; under the weights before the first update on the batch, where the learner computed them."""
    reference_logprobs: Tensor | None = None
    """float32; under the reference model, where there is one."""
    sizes: NDArray[np.int64] | None = None
    """`counts`, on the host."""

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        weights: Sequence[float] | np.ndarray,
        device: torch.device,
    ) -> TrainedTokens:
        """`weights` has what each sampled token of a sample counts, [num_samples]."""
        counts = np.array([sample.num_sampled for sample in samples], np.int64)

        def send(array: np.ndarray) -> Tensor:
            return to_device(array, device)

        def optional(arrays: list[np.ndarray | None]) -> Tensor | None:
            known = [array for array in arrays if array is not None]
            assert len(known) in (0, len(arrays)), "all samples of a batch have it, or none"
            return send(np.concatenate(known)) if known else None

        return cls(
            rollout_logprobs=send(np.concatenate([sample.logprobs[sample.loss_mask] for sample in samples])),
            ages=send(np.concatenate([_ages(sample) for sample in samples])),
            advantages=send(np.concatenate([_advantages(sample) for sample in samples])),
            weights=send(np.repeat(np.asarray(weights, np.float32), counts)),
            sequences=send(np.repeat(np.arange(len(samples), dtype=np.int64), counts)),
            counts=send(counts),
            old_logprobs=optional([sample.old_logprobs for sample in samples]),
            reference_logprobs=optional([sample.reference_logprobs for sample in samples]),
            sizes=counts,
        )

    def __len__(self) -> int:
        return len(self.weights)

    def rows(self, rows: slice | Tensor) -> TrainedTokens:
        """Some of the tokens, a slice or int64 places, for what is computed token by token; `sequences` and `counts`
        stay those of all."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return TrainedTokens(
            **{name: part if part is None or name in _COUNTS else part[rows] for name, part in parts.items()}
        )

    def trajectories(self, rows: slice) -> TrainedTokens:
        """The tokens `rows`, which are all those of some trajectories."""
        assert self.sizes is not None
        first, last = np.searchsorted(np.cumsum(self.sizes), [rows.start, rows.stop - 1], side="right")
        of = slice(int(first), int(last) + 1)
        part = self.rows(rows)
        return replace(part, sequences=part.sequences - of.start, counts=self.counts[of], sizes=self.sizes[of])

    def sums(self, values: Tensor) -> Tensor:
        """`values` [num_trained], summed within each trajectory: [num_sequences]. Differentiable."""
        import torch

        return torch.segment_reduce(values, "sum", lengths=self.counts)

    def means(self, values: Tensor) -> Tensor:
        """`values` [num_trained], averaged within each trajectory: [num_sequences]. Differentiable."""
        return self.sums(values) / self.counts

    def spread(self, values: Tensor) -> Tensor:
        """`values` [num_sequences] at each token of the trajectory: [num_trained]. Differentiable."""
        return values[self.sequences]


def _ages(sample: Sample) -> NDArray[np.int32]:
    return np.maximum(sample.policy_version - sample.versions[sample.loss_mask], 0).astype(np.int32)


def _advantages(sample: Sample) -> NDArray[np.float32]:
    return np.broadcast_to(np.asarray(sample.advantage, np.float32), sample.num_sampled)
