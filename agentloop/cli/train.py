"""The command `agentloop train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentloop.api.recipe import complete_recipe
from agentloop.errors import UserError

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
        typer.Option(
            "--dry-run",
            help="Check the run without weights: play a scripted episode, measure the prompts, and print the given and "
            "derived settings.",
        ),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="With --dry-run: print the whole resolved config.")] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the run in run.folder, or else the newest run below runs/ with this config.",
        ),
    ] = False,
) -> None:
    """Train a model with a recipe.

    The run resumes if run.folder has a checkpoint. An interrupted run prints the command that resumes it.
    """
    from agentloop.api.recipe import load_run_config, run_name
    from agentloop.api.training import train_config

    if full and not dry_run:
        raise UserError("--full works only with --dry-run: add --dry-run.")
    config, name = load_run_config(recipe, overrides or []), run_name(recipe)
    if dry_run:
        _print_rehearsal(config, name, full=full, resume=resume)
        return
    again = [word for word in overrides or [] if not word.startswith("run.folder=")]

    def command(folder: Path) -> str:
        return shlex.join(["agentloop", "train", recipe, *again, f"run.folder={folder}"])

    train_config(config, name, resume=resume, continue_with=command)


def _print_rehearsal(given: RunConfig, name: str, *, full: bool, resume: bool) -> None:
    """Check the run without weights; print the given settings, the derived settings and the checks."""
    import yaml
    from rich.console import Console
    from rich.syntax import Syntax

    from agentloop.api.training import folder_of
    from agentloop.trainer.rehearsal.rehearsal import rehearse, what_was_set
    from agentloop.trainer.run.train import placed

    config, placement = placed(given, dry_run=True)
    found = rehearse(config, folder_of(config, name, resume=resume), placement)
    console = Console(soft_wrap=True)
    shown = found.config.model_dump(mode="json") if full else what_was_set(given)
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)
    console.print(Syntax(text, "yaml", background_color="default") if console.is_terminal else text, markup=False)
    for name, value in found.derived.items():
        console.print(f"{name:16} {value}", markup=False, highlight=False)
    console.print("\nChecked:", style="green")
    for name, value in found.checked.items():
        console.print(f"  {name:16} {value}", markup=False, highlight=False)
    for warning in found.warnings:
        console.print(warning, style="yellow", markup=False, highlight=False)
