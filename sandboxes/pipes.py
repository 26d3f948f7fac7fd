"""Descriptors of an execution: content to be read by it, and output that is drained from it."""

from __future__ import annotations

import asyncio
import fcntl
import os

_CHUNK = 1 << 16
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


def memory_file(content: bytes) -> int:
    """A descriptor that reads `content` and that nobody can write to."""
    fd = os.memfd_create("agentloop", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


class Drain:
    """Reads a pipe to its end, always, and keeps its first `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._chunks: list[bytes] = []
        self._kept = 0
        self.truncated = False
        self.first: asyncio.Future[bool] = self._loop.create_future()
        """Resolves with the first byte (True) or with an end without one (False)."""
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._fd, self.writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        """`writer` is the end to give away; whoever takes it closes it here."""
        os.set_blocking(self.writer, True)
        self._loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        if not self.first.done():
            self.first.set_result(bool(data))
        if not data:
            self.close()
            return
        room = self._limit - self._kept
        self.truncated |= len(data) > room
        if room:
            self._chunks.append(data[:room])
            self._kept += len(self._chunks[-1])

    def text(self) -> str:
        return b"".join(self._chunks).decode(errors="replace")

    def close(self) -> None:
        """Stop reading, at the end of the pipe or before."""
        if not self.ended.done():
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self.ended.set_result(None)
