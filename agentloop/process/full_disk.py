"""Report a full disk in one sentence, independent of the library that writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentloop.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REASONS = {os.strerror(number): os.strerror(number) for number in _FULL} | dict.fromkeys(
    ("inline_container.cc", "PytorchStreamWriter failed writing"), "torch could not write a file to its end"
)
"""Texts in errors of libraries, and the reason to report."""


_OF_A_RUN = (
    "or lower run.keep_last or run.save_trajectories; then run the same command again, which resumes from the last "
    "checkpoint, if there is one"
)


@contextmanager
def naming_full_disk(folder: Path, advice: str = _OF_A_RUN) -> Iterator[None]:
    """Raise `UserError` if a write below `folder` fails because of a full disk, a quota or a file limit.

    `advice` follows "Make room there, " in the error.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:  # torch's checkpoint errors are not an `Exception`
        reason = _reason(error)
        if reason is None:
            raise
        raise UserError(f"The disk at {_mount_of(folder)} is full ({reason}). Make room there, {advice}.") from error


def _mount_of(folder: Path) -> Path:
    """Return the mount point of the disk."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_mount())


def _reason(error: BaseException) -> str | None:
    """Return why the write failed; None if the error has another cause."""
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        if isinstance(error, OSError) and error.errno in _FULL:
            return os.strerror(error.errno)
        error = error.__cause__ or error.__context__ or error
    return next((reason for each in seen for text, reason in _REASONS.items() if text in str(each)), None)
