"""The commands `agentloop tasks`."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agentloop.envs.harbor.making.swe.making import SweOptions

app = typer.Typer(help="Check Harbor tasks, or create some.", no_args_is_help=True, add_completion=False)


@app.callback()
def _tasks() -> None:
    """Check Harbor tasks, or create some."""


@app.command()
def check(
    folders: Annotated[list[Path], typer.Argument(help="Tasks, or folders with tasks below them.")],
    provider: Annotated[
        str | None, typer.Option(help="Provider of the boxes. Default: docker if an engine answers, else rootfs.")
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(help="NAME=OTHER: replace an image of tasks, or all (*), by an image, tar archive or directory."),
    ] = None,
    offline: Annotated[bool, typer.Option(help="Run all tasks without network.")] = False,
    concurrent: Annotated[int, typer.Option(min=1, help="Number of tasks to check at once.")] = 4,
) -> None:
    """Check that each task gives reward 1 for its solution and 0 if nothing is done. Exits with 1 if a task fails."""
    from agentloop.envs.harbor.check import check_images
    from agentloop.envs.harbor.env import folders_of_tasks
    from agentloop.errors import UserError

    found = [task for folder in folders for task in folders_of_tasks(folder)]
    images = {}
    for each in image or ():
        name, separator, other = each.partition("=")
        if not separator:
            raise UserError(f"--image {each} must be NAME=OTHER, such as python:3.12-slim=./python.tar.")
        images[name] = other
    check_images(found, images)
    wrong = asyncio.run(_check(found, provider, images, offline=offline, concurrent=concurrent))
    typer.echo(f"{len(found) - wrong} of {len(found)} tasks are valid")
    raise typer.Exit(1 if wrong else 0)


@app.command()
def terminal(
    folder: Annotated[Path, typer.Argument(help="New folder for the tasks.")],
    num: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 100,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal tasks.")] = 0,
    level: Annotated[
        list[int] | None, typer.Option(help="1: one short command, 2: files to read, 3: pipelines. Default: all.")
    ] = None,
    image: Annotated[str, typer.Option(help="Image of the tasks, with a shell.")] = "debian:stable-slim",
) -> None:
    """Create small terminal tasks with solutions and tests, which need no network."""
    from agentloop.envs.harbor.making.terminal import terminal_tasks

    made = list(terminal_tasks(folder, num, seed=seed, levels=level or (1, 2, 3), image=image))
    typer.echo(f"made {len(made)} tasks in {folder}: agentloop tasks check {shlex.quote(str(folder))}")


@app.command()
def swe(
    package: Annotated[
        str, typer.Argument(help="NAME==VERSION on the package index, a source archive, or a source folder.")
    ],
    folder: Annotated[
        Path, typer.Argument(help="Folder for the tasks; it may already contain tasks of other packages.")
    ],
    num: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 20,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal tasks for the same package.")] = 0,
    python: Annotated[
        str | None,
        typer.Option(help="Python version in the boxes, such as 3.12. Default: the version that runs agentloop."),
    ] = None,
    runner: Annotated[str, typer.Option(help="Test runner: pytest or unittest.")] = "pytest",
    requires: Annotated[
        list[str] | None,
        typer.Option(help="Requirement of the tests that the package does not declare; repeat for more."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="Name of a requirement to leave out; repeat for more.")
    ] = None,
    modifier: Annotated[
        list[str] | None, typer.Option(help="Kind of bugs, such as change_comparison; repeat for more. Default: all.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Time limit for one run of the tests.")] = 120.0,
    concurrent: Annotated[int, typer.Option(min=1, help="Number of changes to try at once.")] = 2,
    provider: Annotated[
        str | None, typer.Option(help="Provider of the boxes. Default: docker if an engine answers, else rootfs.")
    ] = None,
) -> None:
    """Insert bugs into a Python package, and create a task for each bug that its tests detect.

    Each task is checked: its solution must get 1, and no change must get 0.
    """
    from agentloop.envs.harbor.making.swe.making import SweOptions, own_python
    from agentloop.errors import UserError

    if runner not in ("pytest", "unittest"):
        raise UserError(f"--runner {runner} must be pytest or unittest.")
    options = SweOptions(
        seed=seed,
        runner=runner,  # type: ignore[arg-type]
        requires=requires or (),
        without=without or (),
        modifiers=modifier or (),
        seconds=seconds,
        concurrent=concurrent,
        python=python or own_python(),
    )
    made = asyncio.run(_make_swe(package, folder, num, provider, options))
    note = "" if made == num else f", not {num}: no more bugs were found"
    typer.echo(f"made {made} tasks in {folder}{note}: agentloop tasks check {shlex.quote(str(folder))}")


async def _make_swe(package: str, folder: Path, num: int, provider: str | None, options: SweOptions) -> int:
    from contextlib import aclosing

    from agentloop.boxes.shared import close_providers, provider_of
    from agentloop.envs.harbor.making.swe.making import swe_tasks

    boxes = await provider_of(provider)
    made = 0
    try:
        async with aclosing(swe_tasks(package, folder, num, boxes, options, tell=typer.echo)) as tasks:
            async for task in tasks:
                typer.echo(str(task))
                made += 1
    finally:
        await close_providers()
    return made


async def _check(
    folders: list[Path], provider: str | None, images: dict[str, str], *, offline: bool, concurrent: int
) -> int:
    """Print a line for each task; return the number of invalid tasks."""
    from agentloop.boxes.shared import close_providers, provider_of
    from agentloop.envs.harbor.check import check_tasks

    wrong = 0
    boxes = await provider_of(provider)
    try:
        found = check_tasks(folders, boxes, images=images, network="none" if offline else None, concurrent=concurrent)
        async for finding in found:
            wrong += bool(finding.problems)
            state = "wrong" if finding.problems else "right"
            typer.echo(f"{state}  {finding.folder}  {finding.seconds:.1f} s")
            for problem in finding.problems:
                typer.echo(f"       {problem}")
    finally:
        await close_providers()
    return wrong
