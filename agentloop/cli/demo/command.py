"""The command `agentloop demo`: a whole training run on this machine, and a report of its results."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from agentloop.cli.demo.progress import SeedRun

RECIPE = "tiny"

_VLLM_OPTIONS = "engine.options={dtype: float32, enforce_eager: true, max_model_len: 384}"


def demo(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Config keys of the recipe to set, as key=value.")
    ] = None,
    engine: Annotated[Literal["hf", "vllm"], typer.Option(help="Engine that samples the episodes.")] = "hf",
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs from the same model with different seeds.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps per run; default: as in the recipe.")] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Create the model and warm it up first, which takes minutes.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(help="Folder to write to; default: a new folder below runs/.")] = None,
) -> None:
    """Train a tiny model on this machine and show how it learns.

    The model has a million parameters and was warmed up to write tool calls. With GRPO it learns to write Python
    programs that answer questions: it samples programs, a sandbox runs them, and correct answers earn a reward.
    """
    from rich.console import Console

    from agentloop.api.recipe import claimed_folder
    from agentloop.cli.demo.plot import plot
    from agentloop.cli.demo.report import print_examples, print_summary, write_summary

    console = Console(soft_wrap=False)
    started = time.perf_counter()
    overrides = [*([_VLLM_OPTIONS, "engine.name=vllm"] if engine == "vllm" else []), *(overrides or [])]
    if steps is not None:
        # The learning rate schedule, warm-up included, has one update per step.
        warmup = f"learner.warmup_updates={min(4, steps // 2)}"
        overrides += [f"run.steps={steps}", f"eval.every={steps}", warmup]
    with nullcontext(folder) if folder else claimed_folder(RECIPE, "-demo") as place:
        if from_scratch:
            overrides.append(f"model={_warmed_up(place)}")
        runs = [_run(place, seed, overrides, console) for seed in range(seeds)]
        curve = plot(runs, place / "curve.png")
        write_summary(runs, place / "summary.json")
        print_examples(console, runs)
        print_summary(console, runs, seconds=time.perf_counter() - started)
        for name, path in {"curve": curve, "run folder": place}.items():
            console.print(f"{name:10} {path.resolve()}", markup=False, highlight=False, soft_wrap=True)


def _run(folder: Path, seed: int, overrides: list[str], console: Console) -> SeedRun:
    from agentloop.api.recipe import load_run_config
    from agentloop.cli.demo.progress import DemoProgress
    from agentloop.trainer.run.train import train

    config = load_run_config(RECIPE, [f"run.seed={seed}", f"data.train_options.seed={seed}", *overrides])
    console.rule(f"seed {seed}")
    started = time.perf_counter()
    with DemoProgress(console, seed) as progress:
        asyncio.run(train(config, folder / f"seed_{seed}", progress))
    progress.run.seconds = time.perf_counter() - started
    return progress.run


def _warmed_up(folder: Path) -> Path:
    """Create a model in the folder of the demo and warm it up. Return the folder of that run."""
    from agentloop.api.fine_tuning import sft
    from agentloop.recipes.tiny.model import build_model

    start = build_model(folder / "start").resolve()
    return sft(RECIPE, model=start, run={"folder": folder / "warm-up"}).folder.resolve()
