"""Summarise a rollout: mean reward, pass@k, and other metrics."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from agentloop.types.requests import Group

_BILLED = {
    "api/input_tokens": "input tokens",
    "api/cached_input_tokens": "input tokens from the cache",
    "api/output_tokens": "output tokens",
    "api/cost": "cost in dollars",
    "api/refusals": "refused turns",
    "api/retries": "retried requests",
}
"""Metrics of engines that call a service -> name of their sum in the summary."""


def pass_at_k(rewards: Sequence[Sequence[float]], k: int, *, threshold: float) -> float:
    """Return the unbiased estimate of the fraction of tasks that at least one of k episodes solves (arXiv 2107.03374).

    `rewards` has at least k rewards for each task. A reward of at least `threshold` solves a task.
    """
    return sum(_solved(task, k, threshold) for task in rewards) / len(rewards)


def _solved(rewards: Sequence[float], k: int, threshold: float) -> float:
    n, solved = len(rewards), sum(reward >= threshold for reward in rewards)
    return 1.0 - comb(n - solved, k) / comb(n, k)


def summary(groups: Sequence[Group], *, threshold: float) -> dict[str, float]:
    """Return the summary of a rollout. Episodes without a reward are excluded; they do not count as 0.

    pass@k is that of the tasks with at least k rewards; their number is given unless it is all.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    judged = [[t.reward for t in group.trajectories if t.reward is not None] for group in groups]
    rewards = [reward for group in judged for reward in group]
    figures = {"tasks": float(len(groups)), "episodes": float(len(trajectories)), "judged": float(len(rewards))}
    if rewards:
        figures["mean reward"] = sum(rewards) / len(rewards)
    for k in _powers_of_two(max(map(len, judged), default=0)):
        enough = [task for task in judged if len(task) >= k]
        figures[f"pass@{k}"] = pass_at_k(enough, k, threshold=threshold)
        if len(enough) < len(groups):  # failures left too few rewards
            figures[f"tasks in pass@{k}"] = float(len(enough))
    for name in ("turns", "calls"):
        figures[f"{name} an episode"] = sum(t.metrics.get(name, 0.0) for t in trajectories) / len(trajectories)
    figures["tokens an episode"] = sum(map(len, trajectories)) / len(trajectories)
    for trajectory in trajectories:
        for name in filter(_BILLED.get, trajectory.metrics):
            figures[_BILLED[name]] = figures.get(_BILLED[name], 0.0) + trajectory.metrics[name]
    return figures


def _powers_of_two(largest: int) -> list[int]:
    return [1 << exponent for exponent in range(largest.bit_length())]
