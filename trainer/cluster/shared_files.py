"""Check early that all ranks of a learner see the same files."""

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
"""Seconds within which other nodes must see a new file; NFS caches missing files."""


def check(ranks: LearnerRanks, model: Path, folder: Path | None, seconds: float = APPEAR_SECONDS) -> None:
    """Raise `UserError` if a rank has a different model, or does not see files that this node writes to the run folder.

    A file that this node writes must appear on all nodes within `seconds`.
    """
    model = model.expanduser()
    ranks.run(check_model, model, digest(model))
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder.absolute() / f".probe-{uuid.uuid4().hex}"
    probe.touch()
    try:
        ranks.run(check_probe, probe, seconds)
    finally:
        with suppress(FileNotFoundError):
            probe.unlink()


def digest(model: Path) -> str | None:
    """Return a digest of the model's config.json; None if it is missing, which loading the model reports."""
    file = model / "config.json"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def check_model(objects: Objects, model: Path, expected: str | None) -> None:
    """Raise `UserError` if the model has a different digest on this node."""
    if (here := digest(model)) != expected:
        found = "another config.json" if here else "none"
        raise UserError(
            f"The learner's model is {model}, but {socket.gethostname()}, a node of the learner, has {found} there. "
            "Every node needs the model under the same path: put it on a shared file system, or copy it."
        )


def check_probe(objects: Objects, probe: Path, seconds: float) -> None:
    """Raise `UserError` if this node does not see the file within `seconds`."""
    ends = time.monotonic() + seconds
    while not probe.exists():
        if time.monotonic() > ends:
            raise UserError(
                f"The run folder is {probe.parent}, but {socket.gethostname()}, a node of the learner, does not "
                "see files written there, and each rank saves its part of a checkpoint. Set run.folder to a folder on "
                "a file system that all nodes share (NFS, Lustre), or learner.nodes=1."
            )
        with suppress(FileNotFoundError):
            os.listdir(probe.parent)  # makes NFS refresh its cache
        time.sleep(0.1)
