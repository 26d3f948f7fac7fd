"""`TrainedTokens`: the inputs of the loss for the trained tokens of a micro-batch, before the model runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentloop.errors import WrongTypeError, named, shown
from agentloop.trainer.batch.train_batch import Sample

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_COUNTS = ("counts", "sizes")
"""Fields with one entry per trajectory."""


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return the array as a tensor on `device`; on the CPU it shares the memory of a contiguous array."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


@dataclass(slots=True, frozen=True, eq=False)
class TrainedTokens:
    """Tensors with one entry per sampled token, [num_trained]; the tokens of a trajectory are contiguous.

    A trajectory is never split over micro-batches, so a sum over a trajectory does not depend on the plan.
    """

    rollout_logprobs: Tensor
    """float32; logprobs under the sampling policy, from the engine."""
    ages: Tensor
    """int32; number of versions between the sampling policy and the weights before the batch, 0 or more."""
    advantages: Tensor
    """float32."""
    weights: Tensor
    """float32; the loss of the mini-batch is the sum of loss * weight."""
    sequences: Tensor
    """int64; index of the token's trajectory in the micro-batch, ascending."""
    counts: Tensor
    """[num_sequences] int64; number of trained tokens of each trajectory."""
    old_logprobs: Tensor | None = None
    """float32; logprobs under the weights before the first update on the batch, if the learner computed them."""
    reference_logprobs: Tensor | None = None
    """float32; logprobs under the reference model, if there is one."""
    rivals: Tensor | None = None
    """float32; log-ratio to the reference of the other answer in a preference pair, equal for all tokens of an
    answer."""
    sizes: NDArray[np.int64] | None = None
    """`counts` on the host."""

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        weights: Sequence[float] | np.ndarray,
        device: torch.device,
    ) -> TrainedTokens:
        """Return the trained tokens of samples; `weights` [num_samples] has the weight of each token of a sample."""
        counts = np.array([sample.num_sampled for sample in samples], np.int64)

        def send(array: np.ndarray) -> Tensor:
            return to_device(array, device)

        def optional(arrays: list[np.ndarray | None]) -> Tensor | None:
            known = [array for array in arrays if array is not None]
            assert len(known) in (0, len(arrays)), "either all samples of a batch have the field or none"
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
            rivals=optional([_rival(sample) for sample in samples]),
            sizes=counts,
        )

    def __len__(self) -> int:
        return len(self.weights)

    def rows(self, rows: slice | Tensor) -> TrainedTokens:
        """Return some of the tokens, by a slice or int64 indices, for a tokenwise loss.

        `sequences` and `counts` still refer to all tokens.
        """
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return TrainedTokens(
            **{name: part if part is None or name in _COUNTS else part[rows] for name, part in parts.items()}
        )

    def trajectories(self, rows: slice) -> TrainedTokens:
        """Return the tokens `rows`, which must be all tokens of some trajectories."""
        assert self.sizes is not None
        first, last = np.searchsorted(np.cumsum(self.sizes), [rows.start, rows.stop - 1], side="right")
        of = slice(int(first), int(last) + 1)
        part = self.rows(rows)
        return replace(part, sequences=part.sequences - of.start, counts=self.counts[of], sizes=self.sizes[of])

    def sums(self, values: Tensor) -> Tensor:
        """Return `values` [num_trained] summed within each trajectory, [num_sequences]; differentiable."""
        import torch

        return torch.segment_reduce(values, "sum", lengths=self.counts)

    def means(self, values: Tensor) -> Tensor:
        """Return `values` [num_trained] averaged within each trajectory, [num_sequences]; differentiable."""
        return self.sums(values) / self.counts

    def spread(self, values: Tensor) -> Tensor:
        """Return `values` [num_sequences] repeated for each token of the trajectory, [num_trained]; differentiable."""
        return values[self.sequences]


def check_per_token(values: object, logprobs: Tensor, function: Callable[..., Any], what: str) -> None:
    """Raise `WrongTypeError` unless `function` returned `values` with one entry per token, as `logprobs` has.

    Otherwise a scalar would be broadcast, and the loss would depend on how the batch is split.
    """
    import torch

    if isinstance(values, torch.Tensor) and values.shape == logprobs.shape:
        return
    found = f"a tensor of shape {list(values.shape)}" if isinstance(values, torch.Tensor) else shown(values)
    raise WrongTypeError(
        f"{named(function)} returned {found} as the {what} of {len(logprobs)} tokens. Return a tensor with one entry "
        "for each token, without averaging them: learner.aggregation does that."
    )


def _ages(sample: Sample) -> NDArray[np.int32]:
    return np.maximum(sample.policy_version - sample.versions[sample.loss_mask], 0).astype(np.int32)


def _advantages(sample: Sample) -> NDArray[np.float32]:
    return np.broadcast_to(np.asarray(sample.advantage, np.float32), sample.num_sampled)


def _rival(sample: Sample) -> NDArray[np.float32] | None:
    return None if sample.rival is None else np.full(sample.num_sampled, sample.rival, np.float32)
