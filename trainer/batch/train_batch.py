"""`TrainBatch`: the trajectories of a learner step as arrays with advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentloop.types.grammar import ConstrainedTurn
from agentloop.types.image import PlacedImage
from agentloop.types.trajectory import NO_VERSION, Trajectory

NO_SAMPLED_TOKENS = "no_sampled_tokens"
"""Reason to drop a trajectory: there is nothing to train on."""


@dataclass(slots=True, frozen=True, eq=False)
class Sample:
    """One trajectory as the learner sees it; the first four arrays have one entry per token, [n]."""

    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    """True for sampled tokens; only these carry loss."""
    logprobs: NDArray[np.float32]
    """Logprobs under the sampling policy at its temperature; 0 for tokens that were not sampled."""
    versions: NDArray[np.int32]
    """Policy version that sampled each token; `NO_VERSION` for the others."""
    advantage: float | NDArray[np.float32] = 1.0
    """One advantage for the trajectory, or one per sampled token, [num_sampled]."""
    old_logprobs: NDArray[np.float32] | None = None
    """Logprobs under the weights before the first update on the batch, [num_sampled]."""
    reference_logprobs: NDArray[np.float32] | None = None
    """Logprobs under the reference model, [num_sampled]."""
    rival: float | None = None
    """Summed log-ratio to the reference of the other answer in a preference pair."""
    policy_version: int = 0
    """Version of the weights before the first update on the batch."""
    reward: float = 0.0
    trajectory_id: str = ""
    group_id: str = ""
    episode: int | None = None
    """Index of the episode in the step, shared by its branches; None: the sample is a separate episode."""
    images: tuple[PlacedImage, ...] = ()
    """Images in the order of the tokens."""
    routed: NDArray[np.int16] | None = None
    """Experts that the engine used for the first tokens, [num_routed, decoder layers, k]; None if it does not return
    them."""
    constrained: tuple[ConstrainedTurn, ...] = ()
    """Turns that were sampled with a grammar, in the order of the tokens."""

    def __post_init__(self) -> None:
        sizes = {len(self.token_ids), len(self.loss_mask), len(self.logprobs), len(self.versions)}
        if len(sizes) != 1:
            raise ValueError(f"the arrays of sample {self.trajectory_id!r} have different lengths: {sorted(sizes)}")
        if len(self.loss_mask) and self.loss_mask[0]:
            raise ValueError(f"the first token of sample {self.trajectory_id!r} is sampled, but no token predicts it")
        if any(image.end > len(self.token_ids) for image in self.images):
            raise ValueError(f"an image of sample {self.trajectory_id!r} ends after its {len(self.token_ids)} tokens")
        for values in (self.advantage, self.old_logprobs, self.reference_logprobs):
            if isinstance(values, np.ndarray) and values.shape != (self.num_sampled,):
                raise ValueError(
                    f"sample {self.trajectory_id!r} has values of shape {values.shape} for {self.num_sampled} sampled "
                    "tokens"
                )

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens."""
        return int(self.loss_mask.sum())

    @property
    def has_advantage(self) -> bool:
        """Whether any token has a nonzero advantage; otherwise there is no policy gradient."""
        return bool(np.any(self.advantage))

    def since(self, version: int) -> Sample:
        """Return the sample without loss on tokens that were sampled before `version`."""
        young = self.versions[self.loss_mask] >= version
        if young.all():
            return self
        mask = self.loss_mask.copy()
        mask[mask] = young

        def kept(values: Any) -> Any:
            return values[young] if isinstance(values, np.ndarray) else values

        return replace(
            self,
            loss_mask=mask,
            logprobs=np.where(mask, self.logprobs, np.float32(0)),
            versions=np.where(mask, self.versions, np.int32(NO_VERSION)),
            advantage=kept(self.advantage),
            old_logprobs=kept(self.old_logprobs),
            reference_logprobs=kept(self.reference_logprobs),
        )

    @classmethod
    def from_trajectory(
        cls,
        trajectory: Trajectory,
        advantage: float | NDArray[np.float32] = 1.0,
        policy_version: int = 0,
        episode: int | None = None,
    ) -> Sample:
        """Return the sample of a trajectory, with copies of its arrays. Raises `ValueError` if token 0 is sampled."""
        return cls(
            token_ids=trajectory.token_ids,
            loss_mask=trajectory.loss_mask,
            logprobs=trajectory.logprobs,
            versions=trajectory.versions,
            advantage=advantage,
            policy_version=policy_version,
            reward=0.0 if trajectory.reward is None else trajectory.reward,
            trajectory_id=trajectory.trajectory_id,
            group_id=trajectory.group_id,
            episode=episode,
            images=tuple(trajectory.images),
            routed=None if trajectory.routed is None else trajectory.routed.experts.astype(np.int16, copy=False),
            constrained=tuple(
                ConstrainedTurn(segment.start, segment.end, segment.grammar)
                for segment in trajectory.sampled_segments()
                if segment.grammar is not None
            ),
        )


@dataclass(slots=True, frozen=True, eq=False)
class TrainBatch:
    """The samples of one `Learner.step`."""

    samples: Sequence[Sample]
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> number of trajectories that cannot be trained on."""
    num_too_old: int = 0
    """Number of sampled tokens that carry no loss because the weights that sampled them are too old."""
    auxiliary_samples: Sequence[Sample] = ()
    """Samples for the auxiliary model, with its targets as `advantage`.

    A critic gets value targets, and its values before the step as `old_logprobs`; a process reward model gets outcomes.
    """
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics from building the batch."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all samples."""
        return sum(len(sample) for sample in self.samples)

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens of all samples."""
        return sum(sample.num_sampled for sample in self.samples)
