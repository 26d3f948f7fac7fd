"""`RootfsProcess`: a program in a box that can be written to while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from agentloop.boxes.interface.box import BoxError, ProgramEndedError
from agentloop.boxes.rootfs.connection import Connection

_CHUNK = 1 << 16


class RootfsProcess:
    """Made by `RootfsBox.spawn`. It belongs to the event loop that started it."""

    def __init__(self, connection: Connection, request: dict[str, object], *, tty: bool) -> None:
        stdin, self._writer = os.pipe2(os.O_CLOEXEC)
        self._reader, stdout = os.pipe2(os.O_CLOEXEC)
        self._tty = tty
        self._connection = connection
        try:
            self._number, self._exit = connection.run(request, [stdin, stdout, stdout])
        except BaseException:
            os.close(self._reader)
            os.close(self._writer)
            raise
        finally:
            os.close(stdin)
            os.close(stdout)
        for fd in (self._reader, self._writer):
            os.set_blocking(fd, False)
        self._is_writable = True
        self._is_readable = True

    async def write(self, data: bytes) -> None:
        """Write to its stdin, or to its terminal. Raises `ProgramEndedError` or `BoxLostError`."""
        view = memoryview(data)
        while view:
            if self._exit.done() and (error := self._exit.exception()) is not None:
                raise error
            if not self._is_writable or self._exit.done():
                raise ProgramEndedError("The program has ended, so nothing can be written to it.")
            try:
                view = view[os.write(self._writer, view) :]
            except BlockingIOError:
                await _wait_for(self._writer, to_write=True, or_end=self._exit)
            except BrokenPipeError:
                raise ProgramEndedError("The program has closed its input, so nothing can be written to it.") from None

    async def close_stdin(self) -> None:
        """Close its stdin; with a terminal, send an end of input."""
        if self._is_writable:
            self._is_writable = False
            os.close(self._writer)

    async def read(self) -> bytes:
        """Return the next piece of output, stdout and stderr interleaved; empty at the end."""
        while self._is_readable:
            try:
                data = os.read(self._reader, _CHUNK)
            except BlockingIOError:
                await _wait_for(self._reader)
                continue
            if not data:
                self._is_readable = False
                os.close(self._reader)
            return data
        return b""

    async def interrupt(self) -> None:
        """Press Ctrl-C in its terminal; without one, send SIGINT to its children, or to itself if it has none."""
        if self._tty:
            await self.write(b"\x03")
        else:
            self._connection.tell("interrupt", self._number)

    async def kill(self) -> None:
        """Kill it and every process that it has started, and drop the rest of its output."""
        if not self._exit.done():
            self._connection.tell("kill", self._number)
            with contextlib.suppress(BoxError):
                await self._exit
        await self.close_stdin()
        if self._is_readable:
            self._is_readable = False
            os.close(self._reader)

    async def wait(self) -> int:
        """Return its exit status, 128 + N for signal N."""
        return await asyncio.shield(self._exit)


async def _wait_for(fd: int, *, to_write: bool = False, or_end: asyncio.Future[int] | None = None) -> None:
    """Wait until a descriptor can be read or written, or a process has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    add(fd, _set, ready)
    waits: list[asyncio.Future[Any]] = [ready] if or_end is None else [ready, or_end]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        remove(fd)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
