"""The command `agentloop workers`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from agentloop.errors import UserError


def workers(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    count: Annotated[int, typer.Argument(help="New number of workers.", min=1)],
) -> None:
    """Change the number of Ray workers of a running run.

    Surplus workers exit after their episodes have ended. If the run is resumed, it has the new number again,
    unless you change workers.count.
    """
    from agentloop.trainer.run.folder import RunFolder
    from agentloop.trainer.run.lock import holder
    from agentloop.trainer.workers.worker_count import FILE, WorkerCount

    config = RunFolder(run).read_config()
    if config is None:
        raise UserError(f"{run} is not the folder of a run: it has no config.yaml. Pass the run.folder of the run.")
    if config.get("workers", {}).get("kind") != "ray":
        raise UserError(
            f"The run in {run} has one worker, in its own process. Stop the run, and resume it with Ray workers: "
            f"agentloop train {shlex.quote(f'{run}/config.yaml')} workers.kind=ray workers.count={count}"
        )
    if not holder(run):
        raise UserError(
            f"The run in {run} is not running, so it has no workers to change. Resume it with the new number: "
            f"agentloop train {shlex.quote(f'{run}/config.yaml')} workers.count={count}"
        )
    WorkerCount.request(run / FILE, count, config["workers"]["count"])
    print(
        f"Requested {count} workers for the run in {run}. If they do not fit, the run's output says so. Otherwise its "
        "next metrics count them (workers/alive, workers/draining)."
    )
