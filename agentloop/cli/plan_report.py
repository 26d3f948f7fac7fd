"""The report of `agentloop plan`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from agentloop.trainer.sizing.sharing import ASLEEP

if TYPE_CHECKING:
    from agentloop.trainer.sizing.search import Cluster, Estimate, Found, PlannedRun

_GIB = 2**30
_UNLIMITED = 1000
"""A width that no table reaches."""


def print_found(
    found: Found, own: Estimate | str, run: PlannedRun, cluster: Cluster, *, top: int, command: Sequence[str]
) -> None:
    """Print the layout of the recipe, the best layouts, and why the others do not fit.

    `command` trains with the best layout.
    """
    console = Console()
    work, shape = run.work, run.shape
    where = f"{cluster.gpus} x {cluster.gpu.name} ({cluster.gpu.memory / _GIB:.0f} GiB each"
    split = f", {cluster.engine_gpus} of them for engines" if cluster.engine_gpus else ", shared by engine and learner"
    console.print(
        f"{_count(shape.parameters)} parameters on {where}{split}); "
        f"a step has {work.trajectories} episodes of {work.mean_tokens:,.0f} tokens on average, {work.longest:,} at "
        f"most; the model samples {work.trained:.0%} of them.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if isinstance(own, str):
        console.print(f"The layout of the recipe is impossible: {own}", style="red", markup=False, highlight=False)
    else:
        _print_layout(console, "The layout of the recipe", own, run)
    if found.fitting:
        table = _table(_best_of_each_kind(found.fitting)[:top], shares=not cluster.engine_gpus)
        needed = console.measure(table, options=console.options.update_width(_UNLIMITED)).maximum
        # Lines wrap on narrower terminals, which is better than truncated cells.
        console.width = max(console.width, needed)
        console.print(table)
        _print_layout(console, "Best", found.fitting[0], run)
        console.print(f"  {shlex.join(command)}", markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(
            "No layout fits. Use more GPUs, shorter episodes (limits.max_tokens) or a smaller model.", style="red"
        )
    _print_obstacles(console, found)


def _print_layout(console: Console, title: str, found: Estimate, run: PlannedRun) -> None:
    """Print whether a layout fits, how long a step takes, and the parts of its memory."""
    fits = found.obstacle or f"it fits, about {_seconds(found.step_seconds)} s per step."
    style = "red" if found.obstacle else "green"
    console.print(f"{title} ({_name(found)}): {fits}", style=style, markup=False, highlight=False, soft_wrap=True)
    memory = f"  learner {found.training.total / _GIB:.1f} GiB"
    if parts := _parts(found):
        memory += f": {parts}"
    console.print(memory, markup=False, highlight=False, soft_wrap=True)
    weights = f"  engine weights {found.engine_weights / _GIB:.1f} GiB{' in FP8' if run.engine_fp8 else ''}"
    console.print(weights, markup=False, highlight=False, soft_wrap=True)
    if found.sharing.sleeps and not found.obstacle:
        console.print(f"  {_turns(found)}", markup=False, highlight=False, soft_wrap=True)


def _turns(found: Estimate) -> str:
    sharing = found.sharing
    return (
        f"engine and learner take turns: a sleeping engine keeps {ASLEEP / _GIB:.1f} GiB; while it samples, "
        f"{sharing.learner_away / _GIB:.1f} GiB of each learner GPU are offloaded to the host. Handovers take about "
        f"{_seconds(sharing.handover_seconds)} s per step"
    )


def _best_of_each_kind(estimates: list[Estimate]) -> list[Estimate]:
    """Return the first layout for each backend and parallelism, ignoring budget, checkpointing and offload."""
    first: dict[str, Estimate] = {}
    for found in estimates:
        first.setdefault(_name(found), found)
    return list(first.values())


def _print_obstacles(console: Console, found: Found) -> None:
    if found.obstacles:
        console.print(f"{len(found.fitting)} layouts fit. The others do not:", highlight=False)
    for reason, count in found.obstacles.most_common(8):
        console.print(f"  {count:5} x {reason}", markup=False, highlight=False, soft_wrap=True)


def _table(estimates: list[Estimate], *, shares: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("learner", "check-\npointing", "offload"):
        table.add_column(name, no_wrap=True)
    for name in ("budget", "learner\nGiB", "engine\nGiB", "rollout\ns", "train\ns", "step\ns"):
        table.add_column(name, justify="right", no_wrap=True)
    for found in estimates:
        table.add_row(
            _name(found),
            found.layout.checkpointing,
            found.layout.offload,
            str(found.layout.token_budget),
            f"{found.training.total / _GIB:.1f}",
            f"TP{found.engine_tensor} {(found.engine_weights + max(found.cache, 0)) / _GIB:.1f}"
            f"{'*' if found.sharing.sleeps else ' '}",
            *map(_seconds, (found.rollout_seconds, found.training_seconds, found.step_seconds)),
        )
    beside = ", next to the learner; *: engine and learner take turns (placement.sleep)" if shares else ""
    table.caption = f"engine GiB: weights and cache{beside}"
    return table


def _name(found: Estimate) -> str:
    layout = found.layout
    degrees = {
        "TP": layout.tensor,
        "PP": layout.pipeline,
        "CP": layout.context,
        "EP": layout.expert,
    }
    split = [f"{name}{n}" for name, n in degrees.items() if n > 1]
    data = [f"DP{layout.data}"] if layout.data > 1 or not split else []
    return " ".join([layout.backend, *data, *split])


def _parts(found: Estimate) -> str:
    sizes = [(part.name, getattr(found.training, part.name) / _GIB) for part in fields(found.training)]
    return ", ".join(f"{name.replace('_', ' ')} {size:.1f}" for name, size in sizes if size >= 0.05)


def _count(parameters: float) -> str:
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e8 else f"{parameters / 1e6:.1f} million"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds < 100 else f"{seconds:,.0f}"
