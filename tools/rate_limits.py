"""`SharedLimit`: limits how many calls of a tool run at once and start per second, over all processes of a machine.

Each of the `max_concurrency` slots is a file, and the process that locks the file (flock) holds the slot. The kernel
releases the locks of a process that ends, even by `kill -9`, so no slot is lost. The rate is a file with the time at
which the next call may start. Within one process, callers queue and only the first one looks at the files.

All processes of one user share the limits of tools with the same name.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import random
import re
import struct
import tempfile
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agentloop.errors import UserError

_POLL_SECONDS = (0.002, 0.02)
"""First and longest pause, in seconds, between attempts to find a free slot. Pauses double."""
_TIME = struct.Struct("d")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SharedLimit:
    """Limits on the calls of one tool. None means no limit.

    Raises `UserError` for limits that are not above 0 and for an unusable folder.
    """

    def __init__(
        self,
        name: str,
        *,
        max_concurrency: int | None = None,
        calls_per_second: float | None = None,
        folder: Path | None = None,
    ) -> None:
        if max_concurrency is not None and (type(max_concurrency) is not int or max_concurrency < 1):
            raise UserError(
                f"max_concurrency of the tool {name!r} must be an integer of at least 1, got {max_concurrency!r}."
            )
        if calls_per_second is not None and not _is_rate(calls_per_second):
            raise UserError(
                f"calls_per_second of the tool {name!r} must be a number above 0, got {calls_per_second!r}."
            )
        self._interval = 0.0 if calls_per_second is None else 1.0 / calls_per_second
        self._num_slots = max_concurrency or 0
        self._folder = (folder or _own_folder()) / re.sub(r"[^\w.-]", lambda match: f"%{ord(match[0]):x}", name)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"Cannot create {self._folder} for the limits of the tool {name!r}: {error}.") from error
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Wait until a call may start, and count it as running inside the context. The wait may be cancelled."""
        queue = self._queues.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        slot: int | None = None
        try:
            async with queue:
                if self._num_slots:
                    slot = await self._slot()
                if self._interval:
                    await asyncio.sleep(self._reserve() - time.monotonic())
            yield
        finally:
            if slot is not None:
                os.close(slot)  # releases the lock

    async def _slot(self) -> int:
        pause, longest = _POLL_SECONDS
        while (slot := self._free_slot()) is None:
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # keeps processes from polling in step
            pause = min(2 * pause, longest)
        return slot

    def _free_slot(self) -> int | None:
        """Return the locked file of a slot, or None if all are in use."""
        for number in range(self._num_slots):
            slot = os.open(self._folder / f"slot-{number}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(slot)
            else:
                return slot
        return None

    def _reserve(self) -> float:
        """Return the `time.monotonic()` at which this call may start, and postpone the next call of any process."""
        file = os.open(self._folder / "next-call", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # held for microseconds
            written = os.pread(file, _TIME.size, 0)
            begin = max(time.monotonic(), _TIME.unpack(written)[0] if len(written) == _TIME.size else 0.0)
            os.pwrite(file, _TIME.pack(begin + self._interval), 0)
            return begin
        finally:
            os.close(file)


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _own_folder() -> Path:
    """Return a folder of this user and boot: its files hold times since boot."""
    boot = _BOOT_ID.read_text().strip()[:8] if _BOOT_ID.exists() else "boot"
    folder = Path(tempfile.gettempdir()) / f"agentloop-limits-{os.getuid()}-{boot}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UserError(f"The folder {folder} belongs to another user: remove it, or set TMPDIR to a folder of yours.")
    return folder
