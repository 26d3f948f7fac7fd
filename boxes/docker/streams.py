"""The connection to a command in a container: its input, its output and its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

Stream = Literal["stdout", "stderr"]

_HEADER = 8
_CHUNK = 1 << 16
_ALL = 1 << 20
"""Number of bytes above the capacity of a socket."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5
_END_SECONDS = 0.2
"""Seconds after a command ends within which its output usually ends."""
_REST_SECONDS = 10.0
"""Longest wait in seconds for the end of output that no known program holds open."""


class Streams:
    """Reads and writes a connection that the engine has opened for a command. It belongs to one event loop."""

    def __init__(self, connection: socket.socket, early: bytes = b"", *, tty: bool) -> None:
        """`early` is output already read from the connection."""
        connection.setblocking(False)
        self._socket = connection
        self._tty = tty
        self._loop = asyncio.get_running_loop()
        self._rest = early
        self._is_open = True
        self._arrived = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Write to the command's input. Raises `OSError` if nothing reads it."""
        await self._loop.sock_sendall(self._socket, data)

    def close_input(self) -> None:
        """Close the command's input."""
        if self._is_open:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                return  # the command has ended

    async def read(self) -> tuple[Stream, bytes] | None:
        """Return the next piece of output; None at its end. A cancelled call loses nothing."""
        while (piece := self._next()) is None:
            while (data := self._receive(_CHUNK)) is None:
                await self._wait()
            if not data:
                return None
            self._rest += data
        return piece

    def _next(self) -> tuple[Stream, bytes] | None:
        """Return the next complete piece that has arrived, or None."""
        start, end = 0, len(self._rest)
        name: Stream = "stdout"
        if not self._tty:
            if end < _HEADER:
                return None
            start, end = _HEADER, _HEADER + int.from_bytes(self._rest[4:_HEADER], "big")
            name = "stderr" if self._rest[0] == 2 else "stdout"
        if not start < len(self._rest) or len(self._rest) < end:
            return None
        piece, self._rest = self._rest[start:end], self._rest[end:]
        return name, piece

    def _receive(self, size: int) -> bytes | None:
        """Return new data: empty at the end of the output, None if nothing has arrived."""
        if not self._is_open:
            return b""
        try:
            return self._socket.recv(size)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    async def _wait(self) -> None:
        """Wait until something has arrived, or the connection is closed."""
        self._arrived.clear()
        self._loop.add_reader(self._socket, self._arrived.set)
        try:
            await self._arrived.wait()
        finally:
            if self._is_open:
                self._loop.remove_reader(self._socket)

    async def until(
        self, status: Callable[[], int | None], left_behind: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[tuple[Stream, bytes]]:
        """Yield the output of a command until it ends, or until only programs it left behind are running.

        `status` blocks, and returns the exit status of a command that has ended. `left_behind` asks the engine whether
        programs of the command are running; the command's own output arrives before the answer.
        """
        over = asyncio.ensure_future(_over(status, left_behind))
        reading = asyncio.ensure_future(self.read())
        try:
            while True:
                await asyncio.wait([reading, over], return_when=asyncio.FIRST_COMPLETED)
                if over.done():
                    break
                if (piece := reading.result()) is None:
                    return
                yield piece
                reading = asyncio.ensure_future(self.read())
            over.result()
            if reading.done() and (piece := reading.result()) is not None:
                yield piece
            self._rest += self._receive(_ALL) or b""
            while (piece := self._next()) is not None:
                yield piece
        finally:
            over.cancel()
            reading.cancel()
            await asyncio.gather(over, reading, return_exceptions=True)

    def close(self) -> None:
        """Close the connection. The command keeps running."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket)
            self._arrived.set()
            self._socket.close()


async def _over(status: Callable[[], int | None], left_behind: Callable[[], Awaitable[bool]]) -> None:
    """Return after a command ends, even if programs that it left behind hold its output open."""
    pause = _FIRST_PAUSE
    await asyncio.sleep(pause)
    while await asyncio.to_thread(status) is None:
        pause = min(_LONGEST_PAUSE, pause * 1.5)
        await asyncio.sleep(pause)
    await asyncio.sleep(_END_SECONDS)
    if not await left_behind():
        await asyncio.sleep(_REST_SECONDS)
