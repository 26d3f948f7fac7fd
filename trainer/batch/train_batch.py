"""`TrainBatch`: the trajectories of a learner step as arrays, with their advantages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from agentloop.config.algorithm import AlgorithmConfig
from agentloop.trainer import advantages
from agentloop.trainer.advantages import AdvantageValue, Outcome
from agentloop.types.image import PlacedImage
from agentloop.types.trajectory import NO_VERSION, Trajectory

T = TypeVar("T", bound=np.generic)

NO_REWARD = "no_reward"
NO_SAMPLED_TOKENS = "no_sampled_tokens"
TRUNCATED = "truncated"
TOO_OLD = "too_old"


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
    """[num_sampled]; logprobs under the weights before the first update on the batch."""
    reference_logprobs: NDArray[np.float32] | None = None
    """[num_sampled]; logprobs under the reference model."""
    policy_version: int = 0
    """Version of the weights before the first update on the batch."""
    reward: float = 0.0
    trajectory_id: str = ""
    group_id: str = ""
    images: tuple[PlacedImage, ...] = ()
    """Images in the order of the tokens."""

    def __post_init__(self) -> None:
        sizes = {len(self.token_ids), len(self.loss_mask), len(self.logprobs), len(self.versions)}
        if len(sizes) != 1:
            raise ValueError(f"the arrays of sample {self.trajectory_id!r} differ in length: {sorted(sizes)}")
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
        cls, trajectory: Trajectory, advantage: float | NDArray[np.float32] = 1.0, policy_version: int = 0
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
            images=tuple(trajectory.images),
        )


@dataclass(slots=True, frozen=True, eq=False)
class TrainBatch:
    """The samples of one `Learner.step`."""

    samples: Sequence[Sample]
    num_groups: int = 0
    """Groups given to the batch, including those without any sample left."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Trajectories that cannot be trained on: reason -> count."""
    num_too_old: int = 0
    """Sampled tokens that carry no loss because their weights are too old."""
    auxiliary_samples: Sequence[Sample] = ()
    """The samples of the auxiliary model, whose `advantage` holds its targets.

    For a critic these are value targets, and `old_logprobs` holds its values before the step. For a process reward
    model it is the outcome.
    """

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


ScoreFn = Callable[[Sequence[Sample]], Sequence[NDArray[np.float32]]]
"""samples -> a model's values for the sampled tokens of each sample, [num_sampled] each."""


@dataclass(slots=True, frozen=True)
class TokenModels:
    """Models that score tokens, if the algorithm needs them."""

    reference: ScoreFn | None = None
    """Log-probabilities of the reference model, for `kl_in_reward`."""
    critic: ScoreFn | None = None
    """Values of the critic, for an advantage with `value_targets`."""
    process: ScoreFn | None = None
    """Rewards of the process reward model, for an advantage with `needs_process_rewards`."""


def make_batch(
    groups: Sequence[Sequence[Trajectory]],
    algorithm: AlgorithmConfig | None = None,
    *,
    policy_version: int = 0,
    oldest_version: int = 0,
    baselines: Sequence[float | None] | None = None,
    models: TokenModels | None = None,
) -> TrainBatch:
    """Compute the advantages of all groups and return their trajectories as one batch, in order.

    `policy_version` is that of the weights to be trained. Tokens sampled before `oldest_version` carry no loss.
    `baselines` has the reward of each group's greedy episode. Raises `UserError` for an unknown advantage.

    Branches are trained too. Each branch is judged as if it were its whole episode, so an episode counts once in the
    statistics of its group, however many branches it has. A trajectory without a reward counts neither in the
    statistics nor in the batch. One with a reward but no sampled token counts in the statistics only: it is an outcome
    of the policy, but there is nothing to train on.
    """
    algorithm = algorithm or AlgorithmConfig()
    advantage = advantages.get(algorithm.advantage)
    options = advantages.parse_options(advantage, algorithm.advantage_options)
    assert baselines is not None or not advantage.needs_greedy, "each task needs a greedy episode"
    judged = [[trajectory for trajectory in group if _is_judged(trajectory)] for group in groups]
    streams = [[stream for trajectory in group for stream in _streams(trajectory)] for group in judged]
    outcomes = _outcomes(streams, algorithm, baselines or [None] * len(groups), models or TokenModels())
    values = _advantages(lambda shown: advantage.function(shown, options), judged, outcomes)
    samples: list[Sample] = []
    auxiliary_samples: list[Sample] = []
    dropped = Counter({NO_REWARD: sum(map(len, groups)) - sum(map(len, judged))})
    num_too_old = 0
    for outcome in (outcome for group in outcomes for outcome in group):
        if (reason := _reason_to_drop(outcome.trajectory, algorithm)) is not None:
            dropped[reason] += 1
            continue
        whole = Sample.from_trajectory(outcome.trajectory, values[id(outcome.trajectory)], policy_version)
        sample = whole.since(oldest_version)
        num_too_old += whole.num_sampled - sample.num_sampled
        if not sample.num_sampled:
            dropped[TOO_OLD] += 1
            continue
        samples.append(sample)
        if advantage.value_targets:
            targets = advantage.value_targets(outcome, options)
            auxiliary = replace(whole, advantage=targets, old_logprobs=outcome.values)
            auxiliary_samples.append(auxiliary.since(oldest_version))
        elif advantage.needs_process_rewards:
            auxiliary_samples.append(replace(sample, advantage=sample.reward))
    return TrainBatch(samples, len(groups), dict(+dropped), num_too_old, auxiliary_samples)


def _outcomes(
    groups: Sequence[Sequence[Trajectory]],
    algorithm: AlgorithmConfig,
    baselines: Sequence[float | None],
    models: TokenModels,
) -> list[list[Outcome]]:
    trajectories = [trajectory for group in groups for trajectory in group if trajectory.num_sampled > 0]
    samples = [Sample.from_trajectory(trajectory) for trajectory in trajectories]
    places = {id(trajectory): place for place, trajectory in enumerate(trajectories)}
    penalties = _kl_penalties(samples, algorithm.kl_in_reward, models.reference)
    values = models.critic(samples) if models.critic else None
    process_rewards = models.process(samples) if models.process else None
    overlong = algorithm.overlong
    return [
        [
            Outcome(
                trajectory,
                shaping=overlong.reward(trajectory.num_sampled) if overlong else 0.0,
                penalties=_at(penalties, places.get(id(trajectory))),
                baseline=baseline,
                values=_at(values, places.get(id(trajectory))),
                process_rewards=_at(process_rewards, places.get(id(trajectory))),
            )
            for trajectory in group
        ]
        for group, baseline in zip(groups, baselines, strict=True)
    ]


def _streams(trajectory: Trajectory) -> list[Trajectory]:
    """Return the judged token streams of an episode: the trajectory, then its branches."""
    return [trajectory, *filter(_is_judged, trajectory.branches)]


def _advantages(
    function: Callable[[Sequence[Sequence[Outcome]]], list[list[AdvantageValue]]],
    judged: Sequence[Sequence[Trajectory]],
    outcomes: Sequence[Sequence[Outcome]],
) -> dict[int, AdvantageValue]:
    """Return `id()` of each stream -> its advantage.

    Round 0 compares the trajectories. Round k compares branch k of each episode that has one with the trajectories of
    the other episodes.
    """
    outcome_of = {id(outcome.trajectory): outcome for group in outcomes for outcome in group}
    episodes = [[_streams(trajectory) for trajectory in group] for group in judged]
    values: dict[int, AdvantageValue] = {}
    for k in range(max((len(streams) for group in episodes for streams in group), default=1)):
        shown = [[streams[k] if k < len(streams) else streams[0] for streams in group] for group in episodes]
        judgements = function([[outcome_of[id(stream)] for stream in group] for group in shown])
        for group, found in zip(shown, judgements, strict=True):
            for stream, value in zip(group, found, strict=True):
                values.setdefault(id(stream), value)
    return values


def _is_judged(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None and math.isfinite(trajectory.reward)


def _reason_to_drop(trajectory: Trajectory, algorithm: AlgorithmConfig) -> str | None:
    if trajectory.num_sampled == 0:
        return NO_SAMPLED_TOKENS
    reason = trajectory.stop_reason
    return TRUNCATED if algorithm.drop_truncated and reason is not None and reason.is_truncated else None


def _kl_penalties(
    samples: Sequence[Sample], coef: float, reference: ScoreFn | None
) -> list[NDArray[np.float64]] | None:
    """Return coef * (log policy - log reference) of the sampled tokens of each sample, [num_sampled] each."""
    if coef == 0:
        return None
    assert reference is not None, "kl_in_reward needs a reference model"
    return [
        coef * (sample.logprobs[sample.loss_mask].astype(np.float64) - logprobs)
        for sample, logprobs in zip(samples, reference(samples), strict=True)
    ]


def _at(arrays: Sequence[NDArray[T]] | None, place: int | None) -> NDArray[T] | None:
    return None if arrays is None or place is None else arrays[place]


def supervised_batch(trajectories: Sequence[Trajectory]) -> TrainBatch:
    """Return a batch for the `sft` loss: every sampled token has advantage 1, and rewards do not matter."""
    kept = [trajectory for trajectory in trajectories if trajectory.num_sampled > 0]
    dropped = {NO_SAMPLED_TOKENS: len(trajectories) - len(kept)} if len(kept) < len(trajectories) else {}
    return TrainBatch(samples=[Sample.from_trajectory(trajectory) for trajectory in kept], dropped=dropped)
