"""`agentloop train`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentloop.errors import UserError

if TYPE_CHECKING:
    from agentloop.config.run import RunConfig


def train(
    recipe: Annotated[str, typer.Argument(help="A YAML file, a folder with a config.yaml, or a recipe's name.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, for example run.steps=100.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything but the model, print the plan.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Fail where run.folder has no checkpoint.")] = False,
) -> None:
    """A run.folder that has a checkpoint is gone on with, exactly where it was."""
    from agentloop.cli.recipe import load_run_config, new_folder

    config = load_run_config(recipe, overrides or [])
    config, placement = _placed(config, dry_run=dry_run)
    folder = Path(config.run.folder).expanduser() if config.run.folder else new_folder(recipe)
    if resume:
        _require_checkpoint(config, folder)
    if dry_run:
        _print_plan(config, folder, placement)
        return
    for name, value in placement.items():
        typer.echo(f"{name:16} {value}")
    from agentloop.cli.progress import RunProgress
    from agentloop.trainer.run.timeline import watching
    from agentloop.trainer.run.train import train as train_run

    with RunProgress() as progress, watching(progress, timeline=config.profiler.timeline) as observer:
        asyncio.run(train_run(config, folder, observer))


def _placed(config: RunConfig, *, dry_run: bool) -> tuple[RunConfig, dict[str, str]]:
    """With what follows from `placement.n_gpus`, and that in words. Only a dry run may place what is not here."""
    if config.placement.n_gpus is None:
        return config, {}
    from agentloop.trainer.run.model_folder import local_model
    from agentloop.trainer.sizing.place import check_devices, lines, place

    if not dry_run:
        check_devices(config)
    placed_config, placed = place(config, local_model(config, weights=not dry_run))
    return placed_config, lines(placed) if placed is not None else {}


def _require_checkpoint(config: RunConfig, folder: Path) -> None:
    if config.run.folder is None:
        raise UserError("--resume needs the folder of the run: add run.folder=... to the command.")
    if not any(folder.glob("checkpoints/step_*/state.json")):
        raise UserError(f"{folder} has no checkpoint to resume from. Leave --resume out to start a new run there.")


def _print_plan(config: RunConfig, folder: Path, placement: dict[str, str]) -> None:
    """The resolved config, and what it comes to. Datasets, tools, reward and tokenizer are loaded, models are not."""
    import yaml
    from rich.console import Console
    from rich.syntax import Syntax

    from agentloop.rollout.setup import RolloutSetup
    from agentloop.trainer.run.checks import check_trainable
    from agentloop.trainer.run.model_folder import local_model
    from agentloop.trainer.sizing.batch_sizes import BatchSizes

    check_trainable(config)
    episodes = RolloutSetup.load(config, local_model(config, weights=False))
    config = config.of_length(len(episodes.train))
    algorithm, run = config.algorithm, config.run
    epochs = run.steps * algorithm.groups_per_step / len(episodes.train)
    console = Console(soft_wrap=True)
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    console.print(Syntax(text, "yaml", background_color="default") if console.is_terminal else text, markup=False)
    for name, value in {
        "folder": folder,
        "tasks": f"{len(episodes.train)} to train on, {len(episodes.eval)} held out",
        "tools": ", ".join(tool.name for tool in config.env.tools) or "none",
        "steps": f"{run.steps}, {epochs:.2f} epochs",
        **BatchSizes.of(config).lines(),
        "at once": f"{config.engine.max_concurrency} episodes on each of {config.workers.count} workers",
        **placement,
        "checkpoints": f"every {run.save_every} steps, the last {run.keep_last} kept",
        "evaluation": f"every {config.eval.every} steps, {len(episodes.eval) * config.eval.samples} episodes"
        if config.eval.every
        else "never",
    }.items():
        console.print(f"{name:16} {value}", markup=False, highlight=False)
