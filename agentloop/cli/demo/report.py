"""The report of the demo: the results of all seeds, and one held-out question before and after training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentloop.types.trajectory import SegmentKind, Trajectory

if TYPE_CHECKING:
    from agentloop.cli.demo.progress import SeedRun
    from agentloop.rendering.base import Renderer

_STYLES = {
    SegmentKind.PROMPT: "dim",
    SegmentKind.SAMPLED: "bold green",
    SegmentKind.OBSERVATION: "yellow",
    SegmentKind.TEMPLATE: "dim",
}
_LEGEND = {
    SegmentKind.PROMPT: "prompt",
    SegmentKind.SAMPLED: "sampled by the model, trained on",
    SegmentKind.OBSERVATION: "observed, never trained on",
}
_REWARD, _CALLS, _TRAINED = "eval/reward/mean", "eval/tool_call_rate", "reward/mean"


def print_summary(console: Console, runs: Sequence[SeedRun], *, seconds: float) -> None:
    """Print a table with a row for each seed and the mean."""
    table = Table(title="mean reward on held-out tasks", title_justify="left")
    for name in ("seed", "before", "after", "calls before", "calls after", "steps", "seconds"):
        table.add_column(name, justify="right")
    rows = [_figures(run) for run in runs]
    for row in rows:
        table.add_row(*_cells(row), end_section=row is rows[-1])
    if len(rows) > 1:
        mean = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        table.add_row("mean", *_cells(mean)[1:])
    console.print(table)
    console.print(f"{'took':10} {seconds:.0f} s", highlight=False)


def _figures(run: SeedRun) -> dict[str, float]:
    return {
        "seed": run.seed,
        "before": run.before[_REWARD],
        "after": run.after[_REWARD],
        "calls_before": run.before[_CALLS],
        "calls_after": run.after[_CALLS],
        "steps": run.after["step"],
        "seconds": run.seconds,
    }


def _cells(figures: Mapping[str, float]) -> list[str]:
    shapes = ("{:.0f}", "{:.3f}", "{:.3f}", "{:.0%}", "{:.0%}", "{:.0f}", "{:.0f}")
    return [shape.format(value) for shape, value in zip(shapes, figures.values(), strict=True)]


def write_summary(runs: Sequence[SeedRun], path: Path) -> None:
    """Write the results as JSON, with the training reward of each step."""
    data = [_figures(run) | {"rewards": [step[_TRAINED] for step in run.steps if _TRAINED in step]} for run in runs]
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def print_examples(console: Console, runs: Sequence[SeedRun]) -> None:
    """Print the episodes of one held-out question before and after training, coloured by segment."""
    from agentloop.rendering import renderer_for

    pair = _example(runs[0])
    if pair is None:
        return
    renderer = renderer_for(runs[0].model)
    legend = Text.assemble(*((f" {text} ", f"{_STYLES[kind]} reverse") for kind, text in _LEGEND.items()))
    for name, trajectory in zip(("before", "after"), pair, strict=True):
        console.rule(f"{name} training, reward {trajectory.reward:g}", align="left")
        console.print(Padding(coloured(trajectory, renderer), (0, 2)))
    console.print(legend)


def _example(run: SeedRun) -> tuple[Trajectory, Trajectory] | None:
    """Return the first and last episode of the task that improved most, preferably with a tool call in both."""
    if len(run.evaluated) < 2:
        return None
    first, last = (run.evaluated[step] for step in (min(run.evaluated), max(run.evaluated)))
    pairs = [(first[task], last[task]) for task in first if task in last]

    def interest(pair: tuple[Trajectory, Trajectory]) -> tuple[float, float]:
        before, after = pair
        gain = (after.reward or 0.0) - (before.reward or 0.0)
        return gain, min(before.metrics.get("calls", 0), after.metrics.get("calls", 0), 1)

    return max(pairs, key=interest, default=None)


def coloured(trajectory: Trajectory, renderer: Renderer) -> Text:
    """Return the tokens as text, styled by the kind of their segment; only the last message of the prompt is shown."""
    text = Text()
    for segment in trajectory.segments:
        ids = trajectory.ids[segment.start : segment.end]
        style = _STYLES[segment.kind]
        if segment.kind is SegmentKind.PROMPT:
            hidden = _before_last_message(ids)
            text.append(f"[{hidden} tokens: the tool's schema]\n" if hidden else "", style)
            ids = ids[hidden:]
        text.append(renderer.decode(ids), style)
    return text


def _before_last_message(prompt: Sequence[int]) -> int:
    """Return the number of tokens before the last message.

    Every message starts with the first token of the prompt, and so does the generation prompt after the last message.
    """
    starts = [place for place, token in enumerate(prompt) if token == prompt[0]]
    return starts[-2] if len(starts) > 1 else 0
