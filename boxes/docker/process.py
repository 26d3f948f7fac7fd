"""`DockerProcess`: a program in a container that can be written to while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agentloop.boxes.docker.streams import Streams
from agentloop.boxes.interface.box import ProgramEndedError

_PAUSE = 0.05


class DockerProcess:
    """Made by `DockerBox.spawn`. It belongs to the event loop that started it."""

    def __init__(
        self,
        streams: Streams,
        *,
        status: Callable[[], int | None],
        interrupt: Callable[[], Awaitable[None]],
        kill: Callable[[], Awaitable[None]],
        tty: bool,
    ) -> None:
        self._streams = streams
        self._status = status
        self._interrupt = interrupt
        self._kill = kill
        self._tty = tty
        self._is_writable = True
        self._code: int | None = None

    async def write(self, data: bytes) -> None:
        """Write to its stdin, or to its terminal. Raises `ProgramEndedError` or `BoxLostError`."""
        if not self._is_writable or await self._ended():
            raise ProgramEndedError("The program has ended, so nothing can be written to it.")
        try:
            await self._streams.write(data)
        except OSError:
            raise ProgramEndedError("The program has closed its input, so nothing can be written to it.") from None

    async def close_stdin(self) -> None:
        """Close its stdin; with a terminal, send an end of input."""
        if self._is_writable:
            self._is_writable = False
            if self._tty:
                await self._streams.write(b"\x04")
            else:
                self._streams.close_input()

    async def read(self) -> bytes:
        """Return the next piece of output, stdout and stderr interleaved; empty at the end."""
        piece = await self._streams.read()
        return b"" if piece is None else piece[1]

    async def interrupt(self) -> None:
        """Press Ctrl-C in its terminal; without one, send SIGINT to its children, or to itself if it has none."""
        if self._tty:
            await self.write(b"\x03")
        else:
            await self._interrupt()

    async def kill(self) -> None:
        """Kill it and every process that it has started, and drop the rest of its output."""
        if not await self._ended():
            await self._kill()
        self._is_writable = False
        self._streams.close()

    async def wait(self) -> int:
        """Return its exit status, 128 + N for signal N."""
        while not await self._ended():  # noqa: ASYNC110 - the engine sends no event
            await asyncio.sleep(_PAUSE)
        assert self._code is not None
        return self._code

    async def _ended(self) -> bool:
        if self._code is None:
            self._code = await asyncio.to_thread(self._status)
        return self._code is not None
