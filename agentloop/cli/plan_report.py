"""What `agentloop plan` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from agentloop.trainer.planning.search import Cluster, Estimate, Found, Run

_GIB = 2**30
_PARTS = ("weights", "compute_weights", "gradients", "optimizer", "activations", "working", "head", "reference")


def print_found(found: Found, own: Estimate | str, run: Run, cluster: Cluster, top: int) -> None:
    """The recipe's own layout, the best ones, and what keeps the others from fitting."""
    console = Console()
    work, shape = run.work, run.shape
    where = f"{cluster.gpus} x {cluster.gpu.name} ({cluster.gpu.memory / _GIB:.0f} GiB each"
    split = f", {cluster.engine_gpus} of them for engines" if cluster.engine_gpus else ", shared by engine and learner"
    console.print(
        f"{shape.parameters / 1e9:.2f} billion parameters on {where}{split}); "
        f"a step has {work.trajectories} episodes of {work.mean_tokens:,.0f} tokens on average, {work.longest:,} at "
        f"most, {work.trained:.0%} of them sampled.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if isinstance(own, str):
        console.print(f"The recipe's own layout is impossible: {own}", style="red", markup=False, highlight=False)
    else:
        fits = own.obstacle or "It fits."
        style = "red" if own.obstacle else "green"
        console.print(f"The recipe's own layout ({_name(own)}): {fits}", style=style, markup=False, highlight=False)
        console.print(f"  learner {own.training.total / _GIB:.1f} GiB: {_parts(own)}", markup=False, highlight=False)
    if found.fitting:
        console.print(_table(found.fitting[:top], shares=not cluster.engine_gpus))
        best = found.fitting[0]
        settings = " ".join(f"learner.{name}={value}" for name, value in best.layout.settings().items())
        console.print(f"Best: {settings}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"  learner {best.training.total / _GIB:.1f} GiB: {_parts(best)}", markup=False, highlight=False)
    else:
        console.print(
            "No layout fits. More GPUs, shorter episodes (limits.max_tokens) or a smaller model.", style="red"
        )
    _print_obstacles(console, found)


def _print_obstacles(console: Console, found: Found) -> None:
    if found.obstacles:
        console.print(f"{len(found.fitting)} layouts fit. Of the others:", highlight=False)
    for reason, count in found.obstacles.most_common(8):
        console.print(f"  {count:5} x {reason}", markup=False, highlight=False)


def _table(estimates: list[Estimate], *, shares: bool) -> Table:
    table = Table()
    for name in ("learner", "engine TP", "budget", "checkpointing", "offload"):
        table.add_column(name)
    for name in ("learner GiB", "engine GiB", "episodes at once", "rollout s", "train s", "step s"):
        table.add_column(name, justify="right")
    for found in estimates:
        layout = found.layout
        table.add_row(
            _name(found),
            str(found.engine_tensor),
            str(layout.token_budget),
            layout.checkpointing,
            layout.offload,
            f"{found.training.total / _GIB:.1f}",
            f"{(found.engine_weights + max(found.cache, 0)) / _GIB:.1f}",
            f"{found.slots:.0f} an engine",
            f"{found.rollout_seconds:.1f}",
            f"{found.training_seconds:.1f}",
            f"{found.step_seconds:.1f}",
        )
    table.caption = "engine GiB: weights and cache" + (", in what the learner leaves" if shares else "")
    return table


def _name(found: Estimate) -> str:
    layout = found.layout
    degrees = {
        "DP": layout.data,
        "TP": layout.tensor,
        "PP": layout.pipeline,
        "CP": layout.context,
        "EP": layout.expert,
    }
    return " ".join([layout.backend, *(f"{name}{n}" for name, n in degrees.items() if n > 1 or name == "DP")])


def _parts(found: Estimate) -> str:
    sizes = [(name, getattr(found.training, name) / _GIB) for name in _PARTS]
    return ", ".join(f"{name.replace('_', ' ')} {size:.1f}" for name, size in sizes if size >= 0.05)
