"""The command `agentloop rollout`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agentloop.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from agentloop.config.run import RunConfig
    from agentloop.trainer.workers.local import LocalWorkers
    from agentloop.types.requests import Group
    from agentloop.types.trajectory import Trajectory

_TRAJECTORIES = "trajectories.jsonl"


def rollout(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML file, a folder with a config.yaml, the name of a recipe, or the folder of a run, whose "
            "trained model plays."
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Config keys to set, for example sampling.temperature=0.6.")
    ] = None,
    tasks: Annotated[
        Literal["train", "eval"] | None, typer.Option(help="Tasks to play; default: eval if the recipe has it.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Number of episodes of each task.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Play only this number of tasks, from the first.")] = None,
    threshold: Annotated[float, typer.Option(help="Lowest reward that counts as solved in pass@k.")] = 1.0,
    output: Annotated[Path | None, typer.Option(help="Folder to write to; default: a new folder below runs/.")] = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Step of the run whose model plays; 0 is the model that training started from."),
    ] = None,
) -> None:
    """Evaluate a model: play episodes without training, and write their trajectories.

    The output folder also gets a summary with the model, the mean reward and pass@k. Exits with 1 if no episode could
    be judged.
    """
    from rich.console import Console

    from agentloop.cli.recipe import load_run_config, new_folder
    from agentloop.cli.rollout_report import print_report, summary
    from agentloop.config.resolved import Facts, resolve
    from agentloop.rollout.setup import RolloutSetup, make_engine
    from agentloop.trainer.run.model_folder import local_model
    from agentloop.trainer.workers.local import LocalWorkers
    from agentloop.types.trajectory_io import write_jsonl

    config = load_run_config(recipe, overrides or [])
    names_model = any(override.startswith("model=") for override in overrides or [])
    config, description = _with_model(config, Path(recipe).expanduser(), step, names_model=names_model)
    folder = output or new_folder(recipe, "-rollout")
    if (folder / _TRAJECTORIES).exists():
        raise UserError(f"{folder} already has the trajectories of another rollout. Set --output to another folder.")
    model = local_model(config)
    episodes = RolloutSetup.load(config, model)
    if tasks == "eval" and not episodes.eval:
        raise UserError("--tasks is eval, but this recipe has no held-out tasks. Set data.eval, or leave out --tasks.")
    split: Literal["train", "eval"] = "eval" if episodes.eval and tasks != "train" else "train"
    rows = range(len(episodes.eval if split == "eval" else episodes.train))[:limit]
    engine = make_engine(resolve(config, Facts(model=model, learns=False)))
    folder.mkdir(parents=True, exist_ok=True)
    console = Console()
    console.print(f"playing: {description}", markup=False, highlight=False, soft_wrap=True)
    with _progress(console) as progress:
        bar = progress.add_task("episodes", total=len(rows) * samples)

        def ended(trajectory: Trajectory) -> None:
            # Write each episode as it ends, so that an interrupted rollout keeps the earlier ones.
            write_jsonl(folder / _TRAJECTORIES, [trajectory], append=True)
            progress.advance(bar)

        groups = asyncio.run(_play(LocalWorkers(episodes, engine), split, rows, samples, ended))
    figures = summary(groups, threshold=threshold)
    stored = {"model": str(model), "plays": description} | figures
    (folder / "summary.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    print_report(console, groups, figures)
    console.print(
        f"wrote trajectories and summary to {folder}; view them: agentloop view {folder}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if not figures["judged"]:
        raise typer.Exit(1)


def _with_model(config: RunConfig, recipe: Path, step: int | None, *, names_model: bool) -> tuple[RunConfig, str]:
    """Return the config with the model that plays, and a description of that model."""
    from agentloop.trainer.run.export import is_run, trained_model

    if step is not None and (names_model or not is_run(recipe)):
        raise UserError(f"--step {step} chooses a model of a run. Name the folder of a run, and leave out model=...")
    if names_model or step == 0 or not is_run(recipe):
        return config, f"the model {config.model}"
    folder, description = trained_model(recipe, step)
    return config.replace(model=str(folder)), description


async def _play(
    workers: LocalWorkers,
    split: Literal["train", "eval"],
    rows: Sequence[int],
    samples: int,
    on_trajectory: Callable[[Trajectory], None],
) -> list[Group]:
    from agentloop.trainer.workers.requests import make_requests, play_all

    seed = workers.episodes.config.run.seed
    try:
        await workers.start()
        return await play_all(workers, make_requests("rollout", rows, n=samples, seed=seed, split=split), on_trajectory)
    finally:
        await workers.close()


def _progress(console: Console) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
