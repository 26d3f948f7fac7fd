"""Check that all ranks of a learner see the same files, before they need them."""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path

from agentloop.errors import UserError
from agentloop.trainer.cluster.learner_ranks import LearnerRanks
from agentloop.trainer.cluster.rank_actor import Objects

APPEAR_SECONDS = 10.0
"""Seconds until other nodes must see a file that one node wrote: NFS caches that a file is missing."""


def check(ranks: LearnerRanks, model: Path, folder: Path | None, seconds: float = APPEAR_SECONDS) -> None:
    """Raise `UserError` if a rank has another model, or does not see this node's files in the run folder.

    A file that this node writes must appear on all nodes within `seconds`.
    """
    model = model.expanduser()
    ranks.run(lambda: None, check_model, model, digest(model))
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder.absolute() / f".probe-{uuid.uuid4().hex}"
    probe.touch()
    try:
        ranks.run(lambda: None, check_probe, probe, seconds)
    finally:
        with suppress(FileNotFoundError):
            probe.unlink()


def digest(model: Path) -> str | None:
    """Return a digest of the model's configuration; None if there is none, which loading the model explains."""
    file = model / "config.json"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def check_model(objects: Objects, model: Path, expected: str | None) -> None:
    """Raise `UserError` if the model has another digest on this node."""
    if (here := digest(model)) != expected:
        found = "another config.json" if here else "none"
        raise UserError(
            f"The learner's model is {model}, and {socket.gethostname()}, a node of the learner, has {found} there. "
            "Every node needs it under the same path: put it on a file system that all of them see, or copy it."
        )


def check_probe(objects: Objects, probe: Path, seconds: float) -> None:
    """Raise `UserError` if this node does not see the file within `seconds`."""
    ends = time.monotonic() + seconds
    while not probe.exists():
        if time.monotonic() > ends:
            raise UserError(
                f"The run is written to {probe.parent}, and {socket.gethostname()}, a node of the learner, does not "
                "see what is written there: each rank saves its part of a checkpoint. Set run.folder to a folder on a "
                "file system that all nodes share (NFS, Lustre), or learner.nodes=1."
            )
        with suppress(FileNotFoundError):
            os.listdir(probe.parent)  # makes NFS look again
        time.sleep(0.1)
