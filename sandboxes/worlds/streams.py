"""Descriptors of a step: content that it reads, and output that is drained from it."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterable

_CHUNK = 1 << 16
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
_FIRST = 0.02
"""Seconds until a pipe is read for the first time. Most programs have ended by then, so it is read only once."""
_PAUSE = 0.005
"""Seconds between two reads of a pipe that is not nearly full, so that a program that prints single characters does not
wake the event loop for each."""


def memory_file(parts: Iterable[bytes]) -> int:
    """Return a sealed descriptor that reads `parts` and cannot be written to."""
    fd = os.memfd_create("agentloop", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    for content in _batches(parts):
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


def _batches(parts: Iterable[bytes]) -> Iterable[bytes]:
    """Join small parts, so that each write has a few large pieces."""
    small: list[bytes] = []
    size = 0
    for part in parts:
        small.append(part)
        size += len(part)
        if size >= _CHUNK:
            yield b"".join(small)
            small, size = [], 0
    yield b"".join(small)


class Drain:
    """Reads a pipe to its end and keeps its first `limit` bytes."""

    def __init__(self, limit: int, on_data: Callable[[bytes], None] | None = None) -> None:
        """Keep `limit` bytes, and call `on_data` with each piece that is read, kept or not."""
        self._loop = asyncio.get_running_loop()
        self._on_data = on_data
        self._limit = limit
        self._chunks: list[bytes] = []
        self._kept = 0
        self._open = True
        self._listening = False
        self.truncated = False
        self._fd, self.writer = os.pipe2(os.O_CLOEXEC)
        """Open the pipe. `writer` is the end to pass on; close this process's copy after it was sent."""
        os.set_blocking(self._fd, False)
        os.fchmod(self.writer, 0o666)  # so that programs of any user may open /dev/stdout
        self._timer = self._loop.call_later(_FIRST, self._listen)

    def _listen(self) -> None:
        self._listening = True
        self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        count = self._read()
        if count == 0:
            self.close()
        elif count < _CHUNK // 2:
            self._listening = False
            self._loop.remove_reader(self._fd)
            self._timer = self._loop.call_later(_PAUSE, self._listen)

    def _read(self) -> int:
        """Read once. Return the number of bytes; 0 at the end, -1 if none are available now."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return -1
        if data and self._on_data is not None:
            self._on_data(data)
        room = self._limit - self._kept
        self.truncated |= len(data) > room
        if room:
            self._chunks.append(data[:room])
            self._kept += len(self._chunks[-1])
        return len(data)

    def finish(self) -> bytes:
        """Return the first `limit` bytes of everything written until now. Later output is lost."""
        if self._open:
            while not self.truncated and self._read() > 0:
                pass
            self.close()
        return b"".join(self._chunks)

    def close(self) -> None:
        """Stop reading, even before the end of the pipe."""
        if self._open:
            self._open = False
            self._timer.cancel()
            if self._listening:
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
