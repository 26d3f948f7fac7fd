"""`agentloop demo`: reinforcement learning from start to end on this machine, and what came of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from agentloop.cli.demo.progress import SeedRun

RECIPE = "tiny"

_VLLM_OPTIONS = "engine.options={dtype: float32, enforce_eager: true, max_model_len: 384}"


def demo(
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value of the recipe's config.")] = None,
    engine: Annotated[Literal["hf", "vllm"], typer.Option(help="What samples the episodes.")] = "hf",
    seeds: Annotated[int, typer.Option(min=1, help="Runs from the same start, with different seeds.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each run; default: the recipe's.")] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Make the model and warm it up here, minutes more.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(help="Where to write; default: a new folder below runs/.")] = None,
) -> None:
    """A model of a million parameters, warmed up to write tool calls, learns by GRPO which Python answers which
    question: it samples programs, a sandbox runs them, and right answers are rewarded."""
    from rich.console import Console

    from agentloop.cli.demo.plot import plot
    from agentloop.cli.demo.report import print_examples, print_summary, write_summary
    from agentloop.cli.recipe import new_folder

    console = Console(soft_wrap=False)
    started = time.perf_counter()
    folder = folder or new_folder(RECIPE, "-demo")
    overrides = [*([_VLLM_OPTIONS, "engine.name=vllm"] if engine == "vllm" else []), *(overrides or [])]
    if steps is not None:
        # The warm-up of the learning rate is part of its schedule, which has as many updates as the run has steps.
        warmup = f"learner.warmup_updates={min(4, steps // 2)}"
        overrides += [f"run.steps={steps}", f"eval.every={steps}", warmup]
    if from_scratch:
        overrides.append(f"model={_warmed_up(folder, console)}")
    runs = [_run(folder, seed, overrides, console) for seed in range(seeds)]
    picture = plot(runs, folder / "curve.png")
    write_summary(runs, folder / "summary.json")
    print_examples(console, runs)
    print_summary(console, runs, seconds=time.perf_counter() - started)
    for what, path in {"curve": picture, "run folder": folder}.items():
        console.print(f"{what:10} {path.resolve()}", markup=False, highlight=False, soft_wrap=True)


def _run(folder: Path, seed: int, overrides: list[str], console: Console) -> SeedRun:
    from agentloop.cli.demo.progress import DemoProgress
    from agentloop.cli.recipe import load_run_config
    from agentloop.trainer.run.train import train

    config = load_run_config(RECIPE, [f"run.seed={seed}", f"data.train_options.seed={seed}", *overrides])
    console.rule(f"seed {seed}")
    started = time.perf_counter()
    with DemoProgress(console, seed) as progress:
        asyncio.run(train(config, folder / f"seed_{seed}", progress))
    progress.run.seconds = time.perf_counter() - started
    return progress.run


def _warmed_up(folder: Path, console: Console) -> Path:
    """A model made from nothing, in the folder of the demo."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from agentloop.recipes.tiny.warmup import warm_up

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("warm-up on synthetic traces", total=None)

        def advance(done: int, total: int, loss: float) -> None:
            progress.update(bar, completed=done, total=total, description=f"warm-up, loss {loss:.3f}")

        return warm_up(folder / "warm-up", on_update=advance).resolve()
