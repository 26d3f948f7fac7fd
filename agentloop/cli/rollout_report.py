"""The report of `agentloop rollout`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb

from rich.console import Console
from rich.table import Table

from agentloop.types.requests import Group
from agentloop.types.trajectory import Trajectory


def pass_at_k(rewards: Sequence[Sequence[float]], k: int, *, threshold: float) -> float:
    """Return the unbiased estimate of the share of tasks that at least one of k episodes solves (arXiv 2107.03374).

    `rewards` has the rewards of each task, at least k of them. A reward of at least `threshold` solves a task.
    """
    return sum(_solved(task, k, threshold) for task in rewards) / len(rewards)


def _solved(rewards: Sequence[float], k: int, threshold: float) -> float:
    n, solved = len(rewards), sum(reward >= threshold for reward in rewards)
    return 1.0 - comb(n - solved, k) / comb(n, k)


def summary(groups: Sequence[Group], *, threshold: float) -> dict[str, float]:
    """Return the figures of the report. Episodes without a reward are left out; they do not count as 0."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    judged = [[t.reward for t in group.trajectories if t.reward is not None] for group in groups]
    rewards = [reward for group in judged for reward in group]
    figures = {"tasks": float(len(groups)), "episodes": float(len(trajectories)), "judged": float(len(rewards))}
    if rewards:
        figures["mean reward"] = sum(rewards) / len(rewards)
    for k in _powers_of_two(max(map(len, judged), default=0)):
        enough = [task for task in judged if len(task) >= k]
        figures[f"pass@{k}"] = pass_at_k(enough, k, threshold=threshold)
    for name in ("turns", "calls"):
        figures[f"{name} an episode"] = sum(t.metrics.get(name, 0.0) for t in trajectories) / len(trajectories)
    figures["tokens an episode"] = sum(map(len, trajectories)) / len(trajectories)
    return figures


def print_report(console: Console, groups: Sequence[Group], figures: dict[str, float]) -> None:
    """Print the figures, the stop reasons, the failures and the most frequent errors."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    _print_table(console, ("", ""), [(name, f"{value:.4g}") for name, value in figures.items()])
    reasons = Counter(str(trajectory.stop_reason) for trajectory in trajectories)
    _print_table(console, ("ended by", "episodes"), [(name, str(count)) for name, count in reasons.most_common()])
    if failures := _failures(trajectories):
        _print_table(console, ("failure", "times"), [(kind, str(count)) for kind, count in failures.most_common()])
    errors = Counter(trajectory.error for trajectory in trajectories if trajectory.error is not None)
    for error, count in errors.most_common(3):
        console.print(f"{count} times: {error}", markup=False, highlight=False, soft_wrap=True)


def _failures(trajectories: Sequence[Trajectory]) -> Counter[str]:
    failures: Counter[str] = Counter()
    for trajectory in trajectories:
        failures.update(trajectory.failures)
    return failures


def _print_table(console: Console, header: tuple[str, str], rows: Sequence[tuple[str, str]]) -> None:
    table = Table(*header, show_header=any(header))
    table.columns[1].justify = "right"
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _powers_of_two(largest: int) -> list[int]:
    return [1 << exponent for exponent in range(largest.bit_length())]
