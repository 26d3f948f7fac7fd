"""The command `agentloop train`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentloop.errors import UserError

if TYPE_CHECKING:
    from agentloop.config.run import RunConfig


def train(
    recipe: Annotated[str, typer.Argument(help="A YAML file, a folder with a config.yaml, or the name of a recipe.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Config keys to set, for example run.steps=100.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Load everything but the weights, print the config and the plan, and exit."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Fail if run.folder has no checkpoint.")] = False,
) -> None:
    """Train a model with a recipe.

    The run resumes from its last checkpoint if run.folder has one.
    """
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
    """Derive settings from `placement.n_gpus`, and describe them. Only a dry run may place on GPUs it does not have."""
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
        raise UserError("--resume needs run.folder, which is not set. Add run.folder=... to the command.")
    if not any(folder.glob("checkpoints/step_*/state.json")):
        raise UserError(f"{folder} has no checkpoint to resume from. Leave out --resume to start a new run there.")


def _print_plan(config: RunConfig, folder: Path, placement: dict[str, str]) -> None:
    """Print the resolved config and the sizes of the run.

    Datasets, tools, reward and tokenizer are loaded; weights are not.
    """
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
        "concurrency": f"{config.engine.max_concurrency} episodes on each of {config.workers.count} workers",
        **placement,
        "checkpoints": f"every {run.save_every} steps, keeping the last {run.keep_last}",
        "evaluation": f"every {config.eval.every} steps, {len(episodes.eval) * config.eval.samples} episodes"
        if config.eval.every
        else "never",
    }.items():
        console.print(f"{name:16} {value}", markup=False, highlight=False)
