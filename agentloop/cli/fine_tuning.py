"""The commands `agentloop sft` and `agentloop dpo`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentloop.api.recipe import Method, built_in_recipes

if TYPE_CHECKING:
    from agentloop.config.fine_tuning import FineTuningConfig


def _complete_sft(incomplete: str) -> list[str]:
    return sorted(name for name in built_in_recipes("sft.yaml") if name.startswith(incomplete))


def _complete_dpo(incomplete: str) -> list[str]:
    return sorted(name for name in built_in_recipes("dpo.yaml") if name.startswith(incomplete))


_Overrides = Annotated[list[str] | None, typer.Argument(help="Config keys to set, for example learner.lr=1e-5.")]
_DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check the run without weights: render and measure the conversations, print the derived settings.",
    ),
]
_Resume = Annotated[
    bool,
    typer.Option("--resume", help="Resume the run in run.folder, or else the newest run below runs/ with this config."),
]


def sft(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML file, a folder with a sft.yaml, or the name of a recipe.", autocompletion=_complete_sft
        ),
    ],
    overrides: _Overrides = None,
    dry_run: _DryRun = False,
    resume: _Resume = False,
) -> None:
    """Train a model on conversations: supervised fine-tuning.

    Only assistant turns carry loss. The run resumes if run.folder has a checkpoint. `agentloop train` accepts its
    folder as model.
    """
    _run("sft", recipe, overrides or [], dry_run=dry_run, resume=resume)


def dpo(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML file, a folder with a dpo.yaml, or the name of a recipe.", autocompletion=_complete_dpo
        ),
    ],
    overrides: _Overrides = None,
    dry_run: _DryRun = False,
    resume: _Resume = False,
) -> None:
    """Train a model on pairs of a better and a worse answer (DPO).

    The reference is the model that the run starts from. The run resumes if run.folder has a checkpoint.
    """
    _run("dpo", recipe, overrides or [], dry_run=dry_run, resume=resume)


def _run(method: Method, recipe: str, overrides: list[str], *, dry_run: bool, resume: bool) -> None:
    from agentloop.api.fine_tuning import fine_tune_config
    from agentloop.api.recipe import load_fine_tuning_config, run_name

    config, name = load_fine_tuning_config(recipe, overrides, method), run_name(recipe, method)
    if dry_run:
        _print_rehearsal(config, name, resume=resume)
        return
    again = [word for word in overrides if not word.startswith("run.folder=")]

    def command(folder: Path) -> str:
        return shlex.join(["agentloop", method, recipe, *again, f"run.folder={folder}"])

    fine_tune_config(config, name, resume=resume, continue_with=command)


def _print_rehearsal(config: FineTuningConfig, name: str, *, resume: bool) -> None:
    from rich.console import Console

    from agentloop.api.training import folder_of
    from agentloop.trainer.fine_tuning.rehearsal import rehearse_fine_tuning
    from agentloop.trainer.fine_tuning.train import FineTuning

    folder = folder_of(config, name, resume=resume)
    lines, warnings = rehearse_fine_tuning(FineTuning.load(config, folder), folder)
    console = Console(soft_wrap=True)
    for label, text in lines.items():
        console.print(f"{label:16} {text}", markup=False, highlight=False)
    for warning in warnings:
        console.print(warning, style="yellow", markup=False, highlight=False)
