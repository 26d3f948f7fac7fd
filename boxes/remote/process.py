"""`RemoteProcess`: a program in a box of a daemon."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from agentloop.boxes.interface.box import ProgramEndedError

Call = Callable[..., Awaitable[httpx.Response]]

_NOT_YET = 204


class RemoteProcess:
    """Made by `RemoteBox.spawn`. `call` sends a request about this program."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._received = 0
        self._is_writable = True
        self._code: int | None = None

    async def write(self, data: bytes) -> None:
        """Write to its stdin, or to its terminal. Raises `ProgramEndedError` or `BoxLostError`."""
        if not self._is_writable:
            raise ProgramEndedError("The program has ended, so nothing can be written to it.")
        await self._send("POST", "input", {"data": base64.b64encode(data).decode()})

    async def close_stdin(self) -> None:
        """Close its stdin; with a terminal, send an end of input."""
        if self._is_writable:
            self._is_writable = False
            await self._send("POST", "input", {"close": True})

    async def read(self) -> bytes:
        """Return the next piece of output; empty at its end. A cancelled call loses nothing."""
        while (answer := await self._send("POST", "output", {"after": self._received})).status_code == _NOT_YET:
            continue
        self._received += len(answer.content)
        return answer.content

    async def interrupt(self) -> None:
        """Press Ctrl-C in its terminal; without one, send SIGINT to its children, or to itself if it has none."""
        await self._send("POST", "interrupt")

    async def kill(self) -> None:
        """Kill it and every process that it has started, and drop the rest of its output."""
        self._is_writable = False
        await self._send("POST", "kill")

    async def wait(self) -> int:
        """Return its exit status, 128 + N for signal N."""
        while self._code is None:
            answer = await self._send("GET", "code")
            if answer.status_code != _NOT_YET:
                self._code = int(answer.json()["code"])
        return self._code

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        return await self._call(method, path, body)
