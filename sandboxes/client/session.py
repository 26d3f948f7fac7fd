"""`RemoteSession`: a session in a daemon. It stays in the daemon that opened it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import NoReturn

from agentloop.errors import SandboxError
from agentloop.sandboxes.client import wire
from agentloop.sandboxes.client.daemon import Daemon
from agentloop.sandboxes.client.http import AnswerLostError, GoneError, NotSentError, OverdueError, UnavailableError
from agentloop.sandboxes.interface.sandbox import CellResult, check_files, check_limits

_MARGIN_SECONDS = 30.0
"""Seconds in addition to the time of a cell: to interrupt it, to end a session that ignores that, and to transfer."""
_FILES_SECONDS = 120.0


class RemoteSession:
    """A session made by `SandboxClient.session`. Nothing is sent twice: a cell whose answer was lost may have run."""

    def __init__(self, daemon: Daemon, id: str, on_trouble: Callable[[Daemon, str], None]) -> None:
        self.id = id
        self.daemon = daemon
        self._on_trouble = on_trouble
        self._path = f"/v1/sessions/{id}"
        self._cell = asyncio.Lock()
        daemon.sessions.add(self)

    async def run(self, code: str, *, max_seconds: float = 10.0) -> CellResult:
        check_limits(SimpleNamespace(max_seconds=max_seconds), "max_seconds")
        body = wire.encode({"code": code, "max_seconds": max_seconds})
        async with self._cell:  # keeps the order of the calls; waiting here does not use up the request's time
            answer = await self._call("POST", "/run", body, seconds=max_seconds + _MARGIN_SECONDS)
        return wire.decode(wire.CellBody, answer).result()

    async def interrupt(self) -> None:
        await self._call("POST", "/interrupt", b"{}", seconds=_MARGIN_SECONDS)

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        check_files(files)
        await self._call("PUT", "/files", wire.encode({"files": wire.encode_files(files)}), seconds=_FILES_SECONDS)

    async def read_files(self, paths: Sequence[str], *, limit: int = 64 << 20) -> dict[str, bytes]:
        body = wire.encode({"paths": list(paths), "limit": limit})
        answer = await self._call("POST", "/files/read", body, seconds=_FILES_SECONDS)
        return wire.decode(wire.FilesBody, answer).files

    async def close(self) -> None:
        if self not in self.daemon.sessions:
            return
        self.daemon.sessions.discard(self)
        with suppress(SandboxError):  # gone or unreachable: it ends at its idle limit
            await self.daemon.call("DELETE", self._path, seconds=_MARGIN_SECONDS)

    async def _call(self, method: str, path: str, body: bytes, *, seconds: float) -> bytes:
        if self not in self.daemon.sessions:
            raise SandboxError("This session was closed.")
        try:
            return await self.daemon.call(method, self._path + path, body, seconds=seconds)
        except GoneError as error:
            raise SandboxError(
                f"The session {self.id} is over: nothing ran in it for too long, or its daemon was restarted. Its "
                "state is lost."
            ) from error
        except (UnavailableError, AnswerLostError, OverdueError) as error:
            self._fail(error)

    def _fail(self, error: SandboxError) -> NoReturn:
        self._on_trouble(self.daemon, str(error))
        fate = "did not run" if isinstance(error, NotSentError) else "may have run: its state is unknown"
        raise SandboxError(f"Session {self.id} at {self.daemon.name}: {error} The request {fate}.") from error
