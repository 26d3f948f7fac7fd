"""The connection to a command in a container: its input, its output and its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Literal

Stream = Literal["stdout", "stderr"]

_HEADER = 8
_CHUNK = 1 << 16
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5
_REST_SECONDS = 0.2
"""A command that has ended may have output on its way; programs that it left behind may hold the connection open."""


class Streams:
    """Reads and writes a connection that the engine has opened for a command. It belongs to one event loop."""

    def __init__(self, connection: socket.socket, *, tty: bool) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._tty = tty
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._is_open = True

    async def write(self, data: bytes) -> None:
        """Write to the command's input. Raises `OSError` if nobody can read it."""
        await self._loop.sock_sendall(self._socket, data)

    def close_input(self) -> None:
        """Let the command read the end of its input."""
        if self._is_open:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                return  # the command has ended

    async def read(self) -> tuple[Stream, bytes] | None:
        """Return the next piece of output; None at its end."""
        if self._tty:
            data = await self._receive()
            return ("stdout", data) if data else None
        while True:
            size = int.from_bytes(self._rest[4:_HEADER], "big") if len(self._rest) >= _HEADER else None
            if size is not None and len(self._rest) >= _HEADER + size:
                piece = self._rest[_HEADER : _HEADER + size]
                name: Stream = "stderr" if self._rest[0] == 2 else "stdout"
                self._rest = self._rest[_HEADER + size :]
                return name, piece
            data = await self._receive()
            if not data:
                return None
            self._rest += data

    async def _receive(self) -> bytes:
        if not self._is_open:
            return b""
        try:
            return await self._loop.sock_recv(self._socket, _CHUNK)
        except OSError:
            return b""

    async def until(self, status: Callable[[], int | None]) -> AsyncIterator[tuple[Stream, bytes]]:
        """Yield the output of a command up to its end, which `status` knows too. `status` blocks."""
        ended = asyncio.ensure_future(_ended(status))
        reading = asyncio.ensure_future(self.read())
        try:
            while True:
                wait = _REST_SECONDS if ended.done() else None
                done, _ = await asyncio.wait(
                    [reading, *([] if ended.done() else [ended])], timeout=wait, return_when=asyncio.FIRST_COMPLETED
                )
                if reading in done:
                    if (piece := reading.result()) is None:
                        return
                    yield piece
                    reading = asyncio.ensure_future(self.read())
                elif ended.done() and not done:
                    return
        finally:
            ended.cancel()
            reading.cancel()
            await asyncio.gather(ended, reading, return_exceptions=True)

    def close(self) -> None:
        """Close the connection. The command goes on."""
        if self._is_open:
            self._is_open = False
            self._socket.close()


async def _ended(status: Callable[[], int | None]) -> None:
    pause = _FIRST_PAUSE
    while True:
        await asyncio.sleep(pause)
        if await asyncio.to_thread(status) is not None:
            return
        pause = min(_LONGEST_PAUSE, pause * 1.5)
