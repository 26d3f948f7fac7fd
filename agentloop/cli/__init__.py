"""The command line. Each command's module is imported when the command runs, so that help comes at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from agentloop.errors import UserError, nearest

_COMMANDS = {
    "demo": (
        "agentloop.cli.demo.command",
        "demo",
        "Train a tiny model from nothing on this machine and show it learn.",
    ),
    "train": ("agentloop.cli.train", "train", "Train a model by a recipe."),
    "rollout": ("agentloop.cli.rollout", "rollout", "Only play episodes: evaluate a model, write trajectories."),
    "plan": ("agentloop.cli.plan", "plan", "Say what fits on how many GPUs, and how long a step would take."),
    "view": ("agentloop.cli.view", "view", "Look at curves, times and trajectories of a run in a browser."),
    "workers": ("agentloop.cli.workers", "workers", "Give a run that is going on more Ray workers, or fewer."),
    "from-verl": ("agentloop.cli.from_verl", "from_verl", "Turn a config of verl into one of agentloop."),
    "tools": ("agentloop.cli.tools", "app", "List the tools, call one, or serve them and the sandboxes."),
}


class _LateCommand(TyperCommand):
    """Known by name and help; its module is imported when it is called."""

    def __init__(self, name: str) -> None:
        self._module, self._attribute, help_text = _COMMANDS[name]
        super().__init__(name, help=help_text)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        target = getattr(import_module(self._module), self._attribute)
        if not isinstance(target, typer.Typer):
            function, target = target, typer.Typer(add_completion=False)
            target.command(help=self.help)(function)
        return typer.main.get_command(target).make_context(info_name, args, parent=parent, **extra)


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            raise UserError(
                f"There is no command {cmd_name!r}.{nearest(cmd_name, _COMMANDS)} Known: {', '.join(_COMMANDS)}."
            )
        return _LateCommand(cmd_name)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"agentloop {version('agentloop')}")
        raise typer.Exit


@app.callback()
def _agentloop(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Agentic multi-turn reinforcement learning."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `agentloop`. Exits with 2 for a user's error, which is one paragraph on stderr, and with 130
    for Ctrl-C."""
    # OpenMP threads that spin while they wait take the cores from engine, sandbox and learner in turn: on two cores a
    # training step took 24 s with spinning and 4 s without. It is read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # transformers' bars for loading and saving would cut through our own progress.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app(None if arguments is None else list(arguments))
    except UserError as error:
        _print_error(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _print_error(message: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
