"""The commands `agentloop envs`."""

from __future__ import annotations

import typer

app = typer.Typer(help="List the environments.", no_args_is_help=True, add_completion=False)


@app.callback()
def _envs() -> None:
    """List the environments."""


@app.command("list")
def list_envs() -> None:
    """List the registered environments with their options (`env.options`)."""
    from agentloop.cli.authoring.listing import print_registry
    from agentloop.envs.registry import ENVS

    print_registry(ENVS, ("row", "toolset", "reward"))
