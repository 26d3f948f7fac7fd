"""The lock on a run folder, so that two runs cannot write to it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.process import file_lock

LOCK = "run.lock"


def locked(folder: Path) -> AbstractContextManager[None]:
    """Hold the lock of an existing run folder. Raises `UserError`, which names the holder, if it is locked."""
    return file_lock.locked(folder / LOCK, partial(_in_use, folder))


def check_free(folder: Path) -> None:
    """Raise `UserError` if another process writes to a run folder."""
    if record := holder(folder):
        raise _in_use(folder, file_lock.described(record))


def holder(folder: Path) -> dict[str, Any]:
    """Return the record of the process that writes to a run folder; empty if there is none."""
    return file_lock.holder(folder / LOCK)


def _in_use(folder: Path, who: str, advice: str = "") -> UserError:
    return UserError(
        f"Another run uses the folder {folder} ({who}): wait until it ends, stop it, or set run.folder to another "
        f"folder{advice}."
    )
