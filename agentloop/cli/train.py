"""The command `agentloop train`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in run.folder, else the newest one below runs/ with this config.",
        ),
    ] = False,
) -> None:
    """Train a model with a recipe.

    The run resumes from its last checkpoint if run.folder has one. A run that ends early prints the command that
    continues it.
    """
    from agentloop.cli.recipe import load_run_config, new_folder

    config = load_run_config(recipe, overrides or [])
    config, placement = _placed(config, dry_run=dry_run)
    folder = _folder_to_resume(recipe, config) if resume else _folder(config) or new_folder(recipe)
    if dry_run:
        _print_plan(config, folder, placement)
        return
    for name, value in placement.items():
        typer.echo(f"{name:16} {value}")
    from agentloop.cli.progress import RunProgress
    from agentloop.trainer.run.timeline import watching
    from agentloop.trainer.run.train import train as train_run

    again = [word for word in overrides or [] if not word.startswith("run.folder=")]
    command = ["agentloop", "train", recipe, *again, f"run.folder={folder}"]
    with RunProgress(command=command) as progress, watching(progress, timeline=config.profiler.timeline) as observer:
        try:
            asyncio.run(_until_terminated(train_run, config, folder, observer))
        except asyncio.CancelledError as error:
            raise typer.Exit(128 + signal.SIGTERM) from error


async def _until_terminated(function: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
    """Call a coroutine function, and cancel it at SIGTERM, so that the run closes what it opened."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await function(*args)


def _folder(config: RunConfig) -> Path | None:
    return Path(config.run.folder).expanduser() if config.run.folder else None


def _placed(config: RunConfig, *, dry_run: bool) -> tuple[RunConfig, dict[str, str]]:
    """Derive settings from `placement.n_gpus`, and describe them. Only a dry run may place on GPUs it does not have."""
    if config.placement.n_gpus is None:
        return config, {}
    from agentloop.trainer.run.model_folder import find_model, local_model
    from agentloop.trainer.sizing.place import check_devices, lines, place

    if not dry_run:
        check_devices(config)
        local_model(config)
    placed_config, placed = place(config, find_model(config).hf_config)
    return placed_config, lines(placed) if placed is not None else {}


def _folder_to_resume(recipe: str, config: RunConfig) -> Path:
    """Return the folder of the run to continue. Raises `UserError` if there is none."""
    from agentloop.cli.recipe import run_folders
    from agentloop.trainer.run.folder import RunFolder
    from agentloop.trainer.run.resume import changed_keys

    if folder := _folder(config):
        if not _has_checkpoint(folder):
            raise UserError(f"{folder} has no checkpoint to resume from. Leave out --resume to start a new run there.")
        return folder
    # With run.epochs the stored length of a schedule is computed from the number of tasks.
    open_keys = ("learner.total_updates",) if config.run.epochs is not None else ()
    resolved = config.model_dump(mode="json")
    for folder in filter(_has_checkpoint, run_folders(recipe)):
        before = RunFolder(folder).read_config()
        if before is not None and not [key for key in changed_keys(before, resolved) if not key.startswith(open_keys)]:
            return folder
    raise UserError(
        f"No run of {recipe} with this config has a checkpoint below {Path('runs').absolute()}. Set run.folder to the "
        "folder of the run, or leave out --resume to start a new one."
    )


def _has_checkpoint(folder: Path) -> bool:
    """Return whether a run in the folder can be resumed."""
    from agentloop.trainer.run.checkpoints import checkpoint_steps
    from agentloop.trainer.run.folder import RunFolder

    return bool(checkpoint_steps(RunFolder(folder).checkpoints))


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
