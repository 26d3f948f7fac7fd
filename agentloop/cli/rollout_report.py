"""The report of `agentloop rollout`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from agentloop.api.evaluation import RolloutResult
from agentloop.types.trajectory import Trajectory


def print_report(console: Console, result: RolloutResult) -> None:
    """Print the summary, the stop reasons, the failures and the most frequent errors."""
    trajectories = result.trajectories
    _print_table(console, ("", ""), [(name, _figure(value)) for name, value in result.summary.items()])
    reasons = Counter(str(trajectory.stop_reason) for trajectory in trajectories)
    _print_table(console, ("ended by", "episodes"), [(name, str(count)) for name, count in reasons.most_common()])
    if failures := _failures(trajectories):
        _print_table(console, ("failure", "times"), [(kind, str(count)) for kind, count in failures.most_common()])
    errors = Counter(trajectory.error for trajectory in trajectories if trajectory.error is not None)
    for error, count in errors.most_common(3):
        console.print(f"{count} times: {error}", markup=False, highlight=False, soft_wrap=True)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() else f"{value:.4g}"


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
