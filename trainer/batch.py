"""What a learner trains on: trajectories with their advantages, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentloop.trainer.advantages import group_advantages
from agentloop.trajectory import Trajectory

NO_REWARD = "no_reward"
NO_SAMPLED_TOKENS = "no_sampled_tokens"


@dataclass(slots=True, frozen=True, eq=False)
class Sample:
    """One trajectory as the learner sees it. The four arrays have one entry a token, [n]."""

    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    """True where the token was sampled: only these carry loss."""
    logprobs: NDArray[np.float32]
    """Under the policy that sampled, temperature included; 0 where not sampled."""
    versions: NDArray[np.int32]
    advantage: float = 1.0
    reward: float = 0.0
    trajectory_id: str = ""
    group_id: str = ""

    def __post_init__(self) -> None:
        sizes = {len(self.token_ids), len(self.loss_mask), len(self.logprobs), len(self.versions)}
        if len(sizes) != 1:
            raise ValueError(f"the arrays of sample {self.trajectory_id!r} differ in length: {sorted(sizes)}")
        if len(self.loss_mask) and self.loss_mask[0]:
            raise ValueError(f"the first token of sample {self.trajectory_id!r} is sampled: nothing predicts it")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        return int(self.loss_mask.sum())

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory, advantage: float = 1.0) -> Sample:
        """Copies the arrays. Raises `ValueError` where the first token is a sampled one."""
        return cls(
            token_ids=trajectory.token_ids,
            loss_mask=trajectory.loss_mask,
            logprobs=trajectory.logprobs,
            versions=trajectory.versions,
            advantage=advantage,
            reward=0.0 if trajectory.reward is None else trajectory.reward,
            trajectory_id=trajectory.trajectory_id,
            group_id=trajectory.group_id,
        )


@dataclass(slots=True, frozen=True, eq=False)
class TrainBatch:
    """The samples of one `Learner.step`."""

    samples: Sequence[Sample]
    num_groups: int = 0
    """Groups that were put in, with those of which nothing was left."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Trajectories that were put in and cannot be trained on: reason -> count."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def num_tokens(self) -> int:
        return sum(len(sample) for sample in self.samples)

    @property
    def num_sampled(self) -> int:
        return sum(sample.num_sampled for sample in self.samples)


def make_batch(groups: Sequence[Sequence[Trajectory]], advantage: str = "grpo") -> TrainBatch:
    """Score each group by itself and put all of them into one batch, in order.

    A trajectory without a reward counts neither in its group's statistics nor in the batch. One that has a reward but
    no sampled token is part of the statistics, since it is an outcome of the policy, but has nothing to train on.
    Raises `UserError` for an unknown advantage.
    """
    samples: list[Sample] = []
    dropped: dict[str, int] = {}
    for group in groups:
        values = group_advantages([trajectory.reward for trajectory in group], advantage)
        for trajectory, value in zip(group, values.tolist(), strict=True):
            reason = NO_REWARD if np.isnan(value) else NO_SAMPLED_TOKENS if trajectory.num_sampled == 0 else None
            if reason is None:
                samples.append(Sample.from_trajectory(trajectory, value))
            else:
                dropped[reason] = dropped.get(reason, 0) + 1
    return TrainBatch(samples=samples, num_groups=len(groups), dropped=dropped)


def supervised_batch(trajectories: Sequence[Trajectory]) -> TrainBatch:
    """A batch for the `sft` loss: each sampled token has weight 1, rewards do not matter."""
    kept = [trajectory for trajectory in trajectories if trajectory.num_sampled > 0]
    dropped = {NO_SAMPLED_TOKENS: len(trajectories) - len(kept)} if len(kept) < len(trajectories) else {}
    return TrainBatch(samples=[Sample.from_trajectory(trajectory) for trajectory in kept], dropped=dropped)
