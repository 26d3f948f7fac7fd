"""The `agentloop` command line. The module of a command is imported when the command runs, so help appears at once."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from agentloop.errors import UserError, nearest
from agentloop.process.program_errors import errors_end_the_program
from agentloop.process.quiet import quiet_libraries
from agentloop.registry.extras import naming_extras

_COMMANDS = {
    "demo": (
        "agentloop.cli.demo.command",
        "demo",
        "Train a tiny model on this machine and show how it learns.",
    ),
    "doctor": ("agentloop.cli.doctor", "doctor", "Report what works on this machine, and how to fix the rest."),
    "train": ("agentloop.cli.train", "train", "Train a model with a recipe."),
    "sft": ("agentloop.cli.fine_tuning", "sft", "Train a model on conversations: supervised fine-tuning."),
    "dpo": ("agentloop.cli.fine_tuning", "dpo", "Train a model on pairs of a better and a worse answer (DPO)."),
    "rollout": (
        "agentloop.cli.rollout",
        "rollout",
        "Evaluate a model: play episodes without training, and write their trajectories.",
    ),
    "export": (
        "agentloop.cli.export",
        "export",
        "Write the model of a checkpoint as a Hugging Face folder.",
    ),
    "plan": (
        "agentloop.cli.plan",
        "plan",
        "Estimate which layouts fit on a number of GPUs, and how long a step takes.",
    ),
    "config": ("agentloop.cli.config", "config", "Explain a key of the configuration, or list all keys."),
    "view": ("agentloop.cli.view", "view", "Show curves, times and episodes of runs in a browser."),
    "workers": ("agentloop.cli.workers", "workers", "Change the number of Ray workers of a running run."),
    "from-verl": (
        "agentloop.cli.from_verl",
        "app",
        "Convert a launch script or a config of verl to a config of agentloop.",
    ),
    "tools": (
        "agentloop.cli.authoring.tools",
        "app",
        "List tools, call one, index a corpus, or serve tools and sandboxes.",
    ),
    "init": (
        "agentloop.cli.authoring.init",
        "init",
        "Create a working package with an environment, a tool or a recipe.",
    ),
    "envs": ("agentloop.cli.authoring.envs", "app", "List the environments."),
    "tasks": ("agentloop.cli.authoring.tasks", "app", "Check Harbor tasks, or create some."),
    "rewards": ("agentloop.cli.authoring.rewards", "app", "List the rewards, or judge an answer with one."),
}


class _LazyCommand(TyperCommand):
    """Command whose module is imported when it is called; its short help is in `_COMMANDS`."""

    def __init__(self, name: str) -> None:
        self._module, self._attribute, help_text = _COMMANDS[name]
        super().__init__(name, help=help_text)

    def load(self) -> Any:
        """Import the command."""
        target = getattr(import_module(self._module), self._attribute)
        if not isinstance(target, typer.Typer):
            function, target = target, typer.Typer(add_completion=False)
            target.command()(function)
        return typer.main.get_command(target)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent=parent, **extra)


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            if ctx.resilient_parsing:  # the shell requests completions of an unknown command
                return None
            raise UserError(
                f"There is no command {cmd_name!r}.{nearest(cmd_name, _COMMANDS)} Commands: {', '.join(_COMMANDS)}."
            )
        return _LazyCommand(cmd_name)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_set: bool) -> None:
    if is_set:
        from importlib.metadata import version

        print(f"agentloop {version('agentloop')}")
        raise typer.Exit


@app.callback()
def _agentloop(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train language models that use tools, with multi-turn reinforcement learning."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, that of this process or the given `arguments`, after which the caller may go on.

    Exit with 2 after a `UserError`, printed as one paragraph on stderr, 130 after Ctrl-C and 143 after SIGTERM.
    """
    quiet_libraries()
    with errors_end_the_program(owns_process=arguments is None), naming_extras():
        app(None if arguments is None else list(arguments))
