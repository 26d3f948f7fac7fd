"""Build the `TrainBatch` of a step from its finished groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from agentloop.config.algorithm import AlgorithmConfig
from agentloop.trainer import advantages
from agentloop.trainer.batch.distillation import distilled
from agentloop.trainer.batch.outcomes import TokenModels, is_judged, judge, reason_to_drop
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.types.trajectory import Trajectory

NO_REWARD = "no_reward"
TOO_OLD = "too_old"


def make_batch(
    groups: Sequence[Sequence[Trajectory]],
    algorithm: AlgorithmConfig | None = None,
    *,
    policy_version: int = 0,
    oldest_version: int = 0,
    greedy: Sequence[Trajectory] | None = None,
    models: TokenModels | None = None,
) -> TrainBatch:
    """Compute the advantages of all groups and return their trajectories as one batch, in order.

    `policy_version` is the version of the weights to train. Tokens sampled before `oldest_version` carry no loss.
    `greedy` has one greedy episode for the task of each group, for advantages that need it. Raises `UserError` for an
    unknown advantage.

    Branches are trained, too (`judge`). A trajectory without a reward is excluded from statistics and batch. A
    trajectory with a reward but no sampled token counts only in the statistics: there is nothing to train on.
    """
    algorithm = algorithm or AlgorithmConfig()
    advantage = advantages.get(algorithm.advantage)
    options = advantages.parse_options(advantage, algorithm.advantage_options)
    samples: list[Sample] = []
    auxiliary_samples: list[Sample] = []
    dropped = Counter({NO_REWARD: sum(not is_judged(trajectory) for group in groups for trajectory in group)})
    num_too_old = 0
    for stream in judge(groups, algorithm, greedy=greedy, models=models):
        outcome = stream.outcome
        if (reason := reason_to_drop(outcome.trajectory, algorithm)) is not None:
            dropped[reason] += 1
            continue
        whole = Sample.from_trajectory(outcome.trajectory, stream.advantage, policy_version, stream.episode)
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
    metrics: dict[str, float] = {}
    if algorithm.distillation is not None:
        assert models is not None
        assert models.teacher is not None, "distillation needs a teacher"
        samples, metrics = distilled(samples, models.teacher(samples), algorithm.distillation.weight)
    return TrainBatch(samples, dict(+dropped), num_too_old, auxiliary_samples, metrics)
