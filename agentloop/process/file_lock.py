"""A file that one process at a time holds locked, and that names this process.

The kernel holds the lock (flock) and releases it when the process exits or dies, so it is never stale. On file systems
without such locks the record in the file decides; records of dead processes on this host are ignored.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.process.owned_folders import is_dead, own_label

InUse = Callable[[str, str], UserError]
"""Makes the error for a file that is locked, of a description of the holder and advice to add, which may be empty."""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems without locks."""


@contextmanager
def locked(file: Path, in_use: InUse) -> Iterator[None]:
    """Hold a file locked, which is created if it is missing. Raises the error `in_use` if another process holds it."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(descriptor, file, in_use)
        _write(descriptor, _own_record())
        try:
            yield
        finally:
            _write(descriptor, {})
    finally:
        os.close(descriptor)


def holder(file: Path) -> dict[str, Any]:
    """Return the record of the process that holds a file; empty if there is none."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return {}
    try:
        record = _read(descriptor)
    finally:
        os.close(descriptor)
    return {} if record and _is_gone(record) else record


def described(record: dict[str, Any]) -> str:
    """Return the holder of a file in words."""
    return "process {pid} on {host}, started {started}".format_map(record) if record else "a process that is starting"


def _is_gone(record: dict[str, Any]) -> bool:
    """Return whether the process of a record is known to be dead; processes on other hosts are not."""
    return record["host"] == socket.gethostname() and is_dead(record["label"])


def _take(descriptor: int, file: Path, in_use: InUse) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise in_use(described(_read(descriptor)), "") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if (record := _read(descriptor)) and not _is_gone(record):
            raise in_use(described(record), f"; if that process is gone, remove {file}") from error


def _own_record() -> dict[str, Any]:
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": now, "label": own_label()}


def _read(descriptor: int) -> dict[str, Any]:
    text = os.pread(descriptor, 4096, 0)
    try:
        found = json.loads(text or b"{}")
    except ValueError:  # it is being written
        return {}
    return found if isinstance(found, dict) else {}


def _write(descriptor: int, record: dict[str, Any]) -> None:
    text = json.dumps(record).encode() if record else b""
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))
