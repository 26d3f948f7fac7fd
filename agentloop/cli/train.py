"""The command `agentloop train`."""

from __future__ import annotations

import asyncio
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentloop.api.recipe import complete_recipe

if TYPE_CHECKING:
    from agentloop.config.run import RunConfig


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML file, a folder with a config.yaml, or the name of a recipe.", autocompletion=complete_recipe
        ),
    ],
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
    from agentloop.api.recipe import load_run_config, run_name
    from agentloop.api.training import folder_of, placed, train_config

    config, name = load_run_config(recipe, overrides or []), run_name(recipe)
    if dry_run:
        config, placement = placed(config, dry_run=True)
        _print_plan(config, folder_of(config, name), placement)
        return
    again = [word for word in overrides or [] if not word.startswith("run.folder=")]

    def command(folder: Path) -> str:
        return shlex.join(["agentloop", "train", recipe, *again, f"run.folder={folder}"])

    try:
        train_config(config, name, resume=resume, continue_with=command)
    except asyncio.CancelledError as error:
        raise typer.Exit(128 + signal.SIGTERM) from error


def _print_plan(config: RunConfig, folder: Path, placement: dict[str, str]) -> None:
    """Print the resolved config and the sizes of the run.

    Datasets, tools, reward and tokenizer are loaded; weights are not.
    """
    import yaml
    from rich.console import Console
    from rich.syntax import Syntax

    from agentloop.episodes.setup import RolloutSetup
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
