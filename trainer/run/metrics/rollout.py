"""Metrics of a step's trajectories. Every metric that depends on the clock is under `time/`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from agentloop.episodes.overruns import OVERRUNS
from agentloop.errors import FailureKind
from agentloop.trainer.schedule.failures import has_equal_rewards, is_failed
from agentloop.types.requests import Group
from agentloop.types.trajectory import Trajectory

_CLOCK = {"seconds": "episode", "seconds_generating": "generating", "seconds_in_tools": "tools"}


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return rewards, lengths, stop reasons and failures of groups with at least one trajectory.

    Reward metrics exclude episodes without a reward.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return (
        reward_metrics(trajectories)
        | {"reward/equal_groups": _mean(has_equal_rewards(group) for group in groups)}
        | _episode_metrics(trajectories)
        | _stop_reasons(trajectories)
        | {f"failures/{kind}": float(sum(t.failures.get(kind, 0) for t in trajectories)) for kind in FailureKind}
        | {"failures/episodes": float(sum(map(is_failed, trajectories)))}
        | _overruns(trajectories)
        | _clock_metrics(trajectories)
    )


def reward_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return mean and standard deviation of the rewards, and the means of the reward function's other metrics."""
    rewards = np.array([t.reward for t in trajectories if t.reward is not None])
    metrics = {}
    if len(rewards):
        metrics = {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
    return _means(trajectories, "reward/") | metrics


def tool_call_rate(trajectories: Iterable[Trajectory]) -> float:
    """Return the fraction of episodes that called a tool."""
    return _mean(trajectory.metrics.get("calls", 0) > 0 for trajectory in trajectories)


def learner_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of `Learner.step` under their names in the log."""
    named = {}
    for name, value in metrics.items():
        if name.startswith("seconds/"):
            named[f"time/learner_{name.removeprefix('seconds/')}"] = value
        elif name.startswith(("critic/", "process_reward/")):
            named[name] = value
        else:
            of_the_clock = name == "mfu" or name.endswith("_per_second")
            named[f"time/{name}" if of_the_clock else f"learner/{name}"] = value
    return named


def _episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    return {
        "rollout/episodes": float(len(trajectories)),
        "rollout/turns": _mean(t.num_turns for t in trajectories),
        "rollout/calls": _mean(t.metrics.get("calls", 0.0) for t in trajectories),
        "rollout/tool_call_rate": tool_call_rate(trajectories),
        "rollout/tokens": _mean(len(t) for t in trajectories),
        "rollout/tokens_max": float(max(len(t) for t in trajectories)),
        "rollout/sampled_tokens": _mean(t.num_sampled for t in trajectories),
        "rollout/truncated": _mean(t.stop_reason is not None and t.stop_reason.is_truncated for t in trajectories),
    } | {name: value for prefix in ("tool/", "env/") for name, value in _means(trajectories, prefix).items()}


def _stop_reasons(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the fraction of each stop reason that occurred."""
    counts: dict[str, int] = defaultdict(int)
    for trajectory in trajectories:
        counts[f"stop/{trajectory.stop_reason}"] += 1
    return {reason: counts[reason] / len(trajectories) for reason in sorted(counts)}


def _overruns(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the number of calls to environments and rewards that exceeded their time limit, by stage."""
    counts: dict[str, float] = defaultdict(float)
    for trajectory in trajectories:
        for name, count in trajectory.metrics.items():
            if name.startswith(OVERRUNS):
                counts[name] += count
    return dict(sorted(counts.items()))


def _clock_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    return {f"time/{name}_mean": _mean(t.metrics.get(key, 0.0) for t in trajectories) for key, name in _CLOCK.items()}


def _means(trajectories: Iterable[Trajectory], prefix: str) -> dict[str, float]:
    """Return the mean of each `Trajectory.metrics` key with the prefix, over the trajectories that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        for name, value in trajectory.metrics.items():
            if name.startswith(prefix):
                values[f"time/{name}" if "seconds" in name else name].append(value)
    return {name: _mean(values[name]) for name in sorted(values)}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
