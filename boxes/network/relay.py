"""Serve connections of a box on this machine, and copy bytes between two connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from functools import partial

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection of a box. Connections that it leaves open are closed afterwards."""

_CHUNK = 1 << 16
_MOST_CONNECTIONS = 256


class Relays:
    """The listening sockets of one box, and their connections."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = True

    async def serve(self, listener: socket.socket, handler: Handler) -> None:
        """Serve every connection to `listener`, which closes with this object."""
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # not asyncio's default; connections inherit it
        self._servers.append(await asyncio.start_server(partial(self._accept, handler), sock=listener))
        if not self._is_open:
            self.close()

    async def _accept(self, handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= _MOST_CONNECTIONS:
            writer.close()
            return
        self._tasks.add(task)
        try:
            await handler(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # the box or the other side is gone, as the program in the box will notice
        except asyncio.CancelledError:
            if self._is_open:
                raise
        finally:
            self._tasks.discard(task)
            writer.close()

    def close(self) -> None:
        """Close all sockets and connections."""
        self._is_open = False
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()


def to_address(host: str, port: int) -> Handler:
    """Return a handler that forwards every connection to an address of this machine's network."""

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await join(reader, writer, *await asyncio.open_connection(host, port))

    return lead


async def join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    other_reader: asyncio.StreamReader,
    other_writer: asyncio.StreamWriter,
) -> None:
    """Copy bytes both ways until both sides have ended, and close the other connection. Raises `OSError`."""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(reader, other_writer))
            tasks.create_task(_copy(other_reader, writer))
    except* OSError as errors:
        raise ConnectionError("a relayed connection broke") from errors
    finally:
        other_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):  # the other side has closed both ways already
        writer.write_eof()
