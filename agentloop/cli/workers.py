"""`agentloop workers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentloop.errors import UserError


def workers(
    run: Annotated[Path, typer.Argument(help="The folder of a run that is going on.")],
    count: Annotated[int, typer.Argument(help="How many there are to be from now on.", min=1)],
) -> None:
    """Have a run go on with another number of Ray workers. Those that are too many end with their episodes."""
    from agentloop.process.atomic import write_text
    from agentloop.trainer.run.folder import RunFolder
    from agentloop.trainer.workers.worker_count import FILE

    config = RunFolder(run).read_config()
    if config is None:
        raise UserError(f"{run} is not the folder of a run: it has no config.yaml.")
    if config.get("workers", {}).get("kind") != "ray":
        raise UserError(
            f"The run in {run} has one worker, in its own process. End it, and go on with it as: agentloop train "
            f"{run}/config.yaml workers.kind=ray workers.count={count}"
        )
    write_text(run / FILE, f"{count}\n")
    print(f"{run} goes on with {count} workers; its next metrics say so (workers/alive, workers/draining).")
