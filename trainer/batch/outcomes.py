"""Compute the advantage of each token stream in finished groups, and find groups without a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentloop.config.algorithm import AlgorithmConfig
from agentloop.trainer import advantages
from agentloop.trainer.advantages import AdvantageValue, Outcome
from agentloop.trainer.batch.train_batch import NO_SAMPLED_TOKENS, Sample
from agentloop.types.trajectory import Trajectory

TRUNCATED = "truncated"
EQUAL = "equal_rewards"
"""Reason to drop a group: all its advantages are 0."""
UNJUDGED = "unjudged"
"""Reason to drop a group: too few of its episodes have a reward to compare them."""

ScoreFn = Callable[[Sequence[Sample]], Sequence[NDArray[np.float32]]]
"""samples -> values of a model for the sampled tokens of each sample, [num_sampled] each."""


@dataclass(slots=True, frozen=True)
class TokenModels:
    """Models that score tokens, if the algorithm needs them."""

    reference: ScoreFn | None = None
    """Log-probabilities of the reference model, for `kl_in_reward`."""
    critic: ScoreFn | None = None
    """Values of the critic, for an advantage with `value_targets`."""
    process: ScoreFn | None = None
    """Rewards of the process reward model, for an advantage with `needs_process_rewards`."""
    teacher: ScoreFn | None = None
    """Log-probabilities of the teacher, for `distillation`."""


@dataclass(slots=True, frozen=True, eq=False)
class JudgedStream:
    """A token stream of a judged episode: its trajectory or a branch."""

    outcome: Outcome
    episode: int
    """Index of the episode in the step, shared by its streams."""
    advantage: AdvantageValue

    @property
    def trajectory(self) -> Trajectory:
        return self.outcome.trajectory


def judge(
    groups: Sequence[Sequence[Trajectory]],
    algorithm: AlgorithmConfig,
    *,
    greedy: Sequence[Trajectory] | None = None,
    models: TokenModels | None = None,
) -> list[JudgedStream]:
    """Return all streams of judged episodes with their advantages, in order.

    `greedy` has one greedy episode for the task of each group, for advantages that need it. Each branch is judged as if
    it were the whole episode, so an episode counts once in the statistics of its group, however many branches it has.
    The overlong penalty and the KL in the reward cover all streams of the episode. Raises `UserError` for an unknown
    advantage.
    """
    advantage = advantages.get(algorithm.advantage)
    options = advantages.parse_options(advantage, algorithm.advantage_options)
    assert greedy is not None or not advantage.needs_greedy, "each task needs a greedy episode"
    judged = [[trajectory for trajectory in group if is_judged(trajectory)] for group in groups]
    outcomes = _outcomes(judged, greedy or (), algorithm, models or TokenModels())
    values = _advantages(lambda shown: advantages.evaluate(advantage, shown, options), outcomes)
    episodes = [episode for group in outcomes for episode in group]
    return [
        JudgedStream(outcome, number, values[id(outcome)])
        for number, episode in enumerate(episodes)
        for outcome in episode
    ]


def is_judged(trajectory: Trajectory) -> bool:
    """Return whether a trajectory has a finite reward."""
    return trajectory.reward is not None and math.isfinite(trajectory.reward)


def reason_to_drop(trajectory: Trajectory, algorithm: AlgorithmConfig) -> str | None:
    """Return why a judged stream is not trained; None if it is."""
    if trajectory.num_sampled == 0:
        return NO_SAMPLED_TOKENS
    reason = trajectory.stop_reason
    return TRUNCATED if algorithm.drop_truncated and reason is not None and reason.is_truncated else None


def reason_without_gradient(group: Sequence[Trajectory], algorithm: AlgorithmConfig) -> str | None:
    """Return why no token of a group would have an advantage (`UNJUDGED`, `EQUAL` or as `reason_to_drop`), or None.

    Valid only if the rewards of the group determine the advantage (`judges_alone`).
    """
    streams = [(stream, reason_to_drop(stream.trajectory, algorithm)) for stream in judge([group], algorithm)]
    if any(np.any(stream.advantage) for stream, reason in streams if reason is None):
        return None
    if sum(map(is_judged, group)) < 2:
        return UNJUDGED
    return EQUAL if any(reason is None for _, reason in streams) else streams[0][1]


def judges_alone(algorithm: AlgorithmConfig) -> bool:
    """Return whether the rewards of a group alone determine whether it has a gradient."""
    advantage = advantages.get(algorithm.advantage)
    needs_model = advantage.value_targets is not None or advantage.needs_process_rewards or algorithm.kl_in_reward > 0
    needs_model = needs_model or algorithm.distillation is not None
    return advantage.compares and not advantage.needs_greedy and not needs_model


def _outcomes(
    judged: Sequence[Sequence[Trajectory]],
    greedy: Sequence[Trajectory],
    algorithm: AlgorithmConfig,
    models: TokenModels,
) -> list[list[list[Outcome]]]:
    """Return the outcomes of the streams of each episode of each group; greedy episodes get the same shaping."""
    groups = [[_streams(trajectory) for trajectory in group] for group in judged]
    compared = [_streams(trajectory) if is_judged(trajectory) else [] for trajectory in greedy]
    streams = [stream for group in groups for episode in group for stream in episode]
    penalties = _penalties([*streams, *(stream for episode in compared for stream in episode)], algorithm, models)
    values, process_rewards = _scores(streams, models.critic), _scores(streams, models.process)
    baselines = [_outcome_of(episode, 0, algorithm, penalties).reward if episode else None for episode in compared]

    def outcome(episode: Sequence[Trajectory], place: int, number: int, baseline: float | None) -> Outcome:
        stream = id(episode[place])
        shaped = _outcome_of(episode, place, algorithm, penalties)
        of_tokens = process_rewards.get(stream)
        scores = values.get(stream)
        return replace(shaped, baseline=baseline, values=scores, process_rewards=of_tokens, episode=number)

    return [
        [
            [outcome(episode, place, number, baseline) for place in range(len(episode))]
            for number, episode in enumerate(group)
        ]
        for group, baseline in zip(groups, baselines or [None] * len(groups), strict=True)
    ]


def _outcome_of(
    episode: Sequence[Trajectory], place: int, algorithm: AlgorithmConfig, penalties: Mapping[int, NDArray[np.float64]]
) -> Outcome:
    """Return the outcome of one stream of an episode, whose shaping depends on all its streams."""
    stream = episode[place]
    others = [each for each in episode if each is not stream and each.role == stream.role]
    # Branches without their own reward were sampled, too.
    sampled = [each for each in (episode[0], *episode[0].branches) if each.role == stream.role]
    num_sampled = sum(each.num_sampled for each in sampled)
    return Outcome(
        stream,
        shaping=algorithm.overlong.reward(num_sampled) if algorithm.overlong else 0.0,
        penalties=penalties.get(id(stream)),
        other_penalties=sum(float(penalties[id(each)].sum()) for each in others if id(each) in penalties),
        other_sampled=num_sampled - stream.num_sampled,
    )


def _streams(trajectory: Trajectory) -> list[Trajectory]:
    """Return the judged token streams of an episode: the trajectory, then its branches."""
    return [trajectory, *filter(is_judged, trajectory.branches)]


def _advantages(
    function: Callable[[Sequence[Sequence[Outcome]]], list[list[AdvantageValue]]],
    groups: Sequence[Sequence[Sequence[Outcome]]],
) -> dict[int, AdvantageValue]:
    """Return `id()` of each outcome -> its advantage.

    Round 0 compares the trajectories. Round k compares branch k of each episode that has one with the trajectories of
    the other episodes. Streams with a role are instead compared with all streams of that role.
    """
    values: dict[int, AdvantageValue] = {}
    for role in sorted(
        {outcome.trajectory.role for group in groups for episode in group for outcome in episode} - {""}
    ):
        shown = [
            [outcome for episode in group for outcome in episode if outcome.trajectory.role == role] for group in groups
        ]
        for group, found in zip(shown, function(shown), strict=True):
            values |= {id(outcome): value for outcome, value in zip(group, found, strict=True)}
    groups = [[episode for episode in group if not episode[0].trajectory.role] for group in groups]
    for k in range(max((len(episode) for group in groups for episode in group), default=0)):
        shown = [[episode[k] if k < len(episode) else episode[0] for episode in group] for group in groups]
        for group, found in zip(shown, function(shown), strict=True):
            for outcome, value in zip(group, found, strict=True):
                values.setdefault(id(outcome), value)
    return values


def _scores(streams: Sequence[Trajectory], score: ScoreFn | None) -> dict[int, NDArray[np.float32]]:
    """Return `id()` of each stream with sampled tokens -> scores of these tokens, [num_sampled]."""
    sampled = [stream for stream in streams if stream.num_sampled > 0]
    if score is None or not sampled:
        return {}
    found = score([Sample.from_trajectory(stream) for stream in sampled])
    return {id(stream): scores for stream, scores in zip(sampled, found, strict=True)}


def _penalties(
    streams: Sequence[Trajectory], algorithm: AlgorithmConfig, models: TokenModels
) -> dict[int, NDArray[np.float64]]:
    """Return `id()` of each stream -> kl_in_reward * (log policy - log reference) of its sampled tokens."""
    if algorithm.kl_in_reward == 0:
        return {}
    assert models.reference is not None, "kl_in_reward needs a reference model"
    found = _scores(streams, models.reference)
    return {
        id(stream): algorithm.kl_in_reward * (stream.logprobs[stream.loss_mask].astype(np.float64) - found[id(stream)])
        for stream in streams
        if id(stream) in found
    }
