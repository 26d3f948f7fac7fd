"""Whether all ranks of a learner see the same files, found out before they need them."""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path

from agentloop.errors import UserError
from agentloop.trainer.cluster.rank_process import Objects
from agentloop.trainer.cluster.rank_processes import RankProcesses

_APPEARS = 10.0
"""Seconds in which a file that one node wrote is seen by the others; NFS remembers for a while what was not there."""
_CONFIG = "config.json"


def check(ranks: RankProcesses, model: Path, folder: Path | None) -> None:
    """Raises `UserError` where a rank has another model, or does not see the folder of the run."""
    model = model.expanduser()
    ranks.run(lambda: None, _check_model, model, _digest(model))
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder.absolute() / f".probe-{uuid.uuid4().hex}"
    probe.touch()
    try:
        ranks.run(lambda: None, _check_probe, probe, _APPEARS)
    finally:
        with suppress(FileNotFoundError):
            probe.unlink()


def _digest(model: Path) -> str | None:
    """Of the configuration; None where there is none, which whoever loads it explains."""
    file = model / _CONFIG
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def _check_model(objects: Objects, model: Path, digest: str | None) -> None:
    if (here := _digest(model)) != digest:
        what = "another config.json" if here else "none"
        raise UserError(
            f"The learner's model is {model}, and {socket.gethostname()}, a node of the learner, has {what} there. "
            "Every node needs it under the same path: put it on a file system that all of them see, or copy it."
        )


def _check_probe(objects: Objects, probe: Path, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not probe.exists():
        if time.monotonic() > ends:
            raise UserError(
                f"The run is written to {probe.parent}, and {socket.gethostname()}, a node of the learner, does not "
                "see what is written there: each rank saves its part of a checkpoint. Set run.folder to a folder on a "
                "file system that all nodes share (NFS, Lustre), or learner.nodes=1."
            )
        with suppress(FileNotFoundError):
            os.listdir(probe.parent)  # asks the server again
        time.sleep(0.1)
