"""The plot of the demo's learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentloop.cli.demo.progress import SeedRun

_COLOURS = ("#1b6ca8", "#d1672b", "#3a8f55", "#8a4fa3", "#777777")
_WINDOW = 5
"""Number of steps in the moving average."""


def plot(runs: Sequence[SeedRun], path: Path) -> Path:
    """Plot the reward of each seed by step: training (thin, with its moving average) and held-out tasks (dots)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, run in enumerate(runs):
        colour = _COLOURS[number % len(_COLOURS)]
        steps, rewards = _series(run, "reward/mean")
        axes.plot(steps, rewards, color=colour, linewidth=0.8, alpha=0.35)
        axes.plot(steps, _smoothed(rewards), color=colour, linewidth=1.8, label=f"seed {run.seed}")
        axes.plot(*_series(run, "eval/reward/mean"), "o", color=colour, markersize=7, markeredgecolor="white", zorder=3)
        axes.plot(*_series(run, "rollout/tool_call_rate"), ":", color=colour, linewidth=1.0)
    axes.plot([], [], "o", color="black", label="held-out tasks")
    axes.plot([], [], ":", color="black", label="share of episodes that call the tool")
    axes.set(xlabel="step", ylabel="mean reward", ylim=(-0.03, 1.03), title="GRPO on the tiny recipe")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)
    return path


def _series(run: SeedRun, name: str) -> tuple[list[float], list[float]]:
    points = [(row["step"], row[name]) for row in run.steps if name in row]
    return [step for step, _ in points], [value for _, value in points]


def _smoothed(values: Sequence[float]) -> list[float]:
    """Return the moving average: the mean of each value and earlier values in the window."""
    windows = (values[max(0, end - _WINDOW) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]
