"""The commands `agentloop envs`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="List environments, and install their packages.", no_args_is_help=True, add_completion=False)


@app.callback()
def _envs() -> None:
    """List environments, and install their packages."""


@app.command("list")
def list_envs() -> None:
    """List the registered environments with their options (`env.options`), and the packages that are installed."""
    from agentloop.cli.authoring.listing import print_registry
    from agentloop.envs.registry import ENVS, load_factory
    from agentloop.envs.workers.interpreters import installed
    from agentloop.envs.workers.packages import PACKAGES

    print_registry(ENVS, load_factory, ("row", "toolset", "reward"))
    typer.echo("Packages with their own interpreter:")
    for name, package in PACKAGES.items():
        place = installed(name)
        state = f"installed: {place}" if place is not None else f"agentloop envs install {name}"
        typer.echo(f"  {name} ({' '.join(package.everything)}): {state}")


@app.command("install")
def install_env(
    name: Annotated[str, typer.Argument(help="Name of the environment, such as reasoning_gym.")],
    python: Annotated[
        str | None, typer.Option(help="Interpreter to use. Default: one on PATH that the package was tested with.")
    ] = None,
) -> None:
    """Install the package of an environment, in tested versions, into its own virtual environment.

    The environment then finds it. The folder is AGENTLOOP_ENVS, by default ~/.local/share/agentloop/envs.
    """
    from agentloop.envs.workers.interpreters import install, suitable_python
    from agentloop.envs.workers.packages import package_named

    name, package = package_named(name)
    base = python or suitable_python(name, package)
    typer.echo(f"installing {' '.join(package.everything)} with {base} ...")
    typer.echo(f"{name} runs with {install(name, package, python=base)}")
