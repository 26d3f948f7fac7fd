"""`RemoteBox`: a box of a daemon."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import httpx

from agentloop.boxes.copies import archive_limit, pack, too_large, unpack
from agentloop.boxes.interface.box import BoxError, BoxLostError, BoxResult, OnOutput
from agentloop.boxes.interface.spec import BoxSpec, check_variables
from agentloop.boxes.remote.connection import DaemonConnection, DaemonDownError
from agentloop.boxes.remote.process import RemoteProcess
from agentloop.errors import UserError

_STOP_SECONDS = 60.0
_HEAD = 5
_RESULT = 3


class RemoteBox:
    """A running box, made by its provider. It belongs to the event loop that started it."""

    def __init__(
        self,
        daemon: DaemonConnection,
        id: str,
        name: str,
        spec: BoxSpec,
        copy: Callable[[RemoteBox], Awaitable[RemoteBox]],
        ended: Callable[[RemoteBox], None],
    ) -> None:
        """`id` is that of the lease. `copy` starts a box with the files of this one; `ended` is called at its end."""
        self.id = name
        self.generation = id
        self.spec = spec
        self.daemon = daemon
        self._copy = copy
        self._on_end = ended
        self._is_alive = True

    def end(self) -> None:
        """Note that the box has ended."""
        if self._is_alive:
            self._is_alive = False
            self._on_end(self)

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **more: Any) -> httpx.Response:
        """Send a request about this box. Raises `BoxLostError` if it has ended, `BoxError` for other failures."""
        self._check_alive()
        try:
            return await self.daemon.call(method, self._path(path), body, **more)
        except (DaemonDownError, BoxLostError) as error:
            raise await self._why(error) from error

    def _path(self, path: str) -> str:
        return f"/v1/boxes/{self.generation}/{path}"

    def _check_alive(self) -> None:
        if not self._is_alive:
            raise BoxLostError(f"The box {self.id} has ended, and its files are lost.")

    async def _why(self, error: BoxError) -> BoxError:
        """Return the error to raise when the daemon did not answer, depending on whether the box still exists."""
        if not isinstance(error, BoxLostError):
            with suppress(DaemonDownError):
                answer = await self.daemon.call("POST", "/v1/boxes/renew", {"ids": [self.generation]}, seconds=10.0)
                if not answer.json()["lost"]:
                    return error
        self.end()
        return BoxLostError(f"The box {self.id} has ended, and its files are lost.")

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,  # noqa: ASYNC109 - the box enforces the timeout
        output_bytes: int = 1 << 20,
        on_output: OnOutput | None = None,
    ) -> BoxResult:
        """Run a command to its end (`Box.exec`). `on_output` gets `output_bytes` of each stream, at most."""
        self._check_alive()
        body = {
            **_command(command, cwd, env, user),
            "stdin": base64.b64encode(stdin).decode() or None,
            "max_seconds": timeout,
            "output_bytes": output_bytes,
            "follow": on_output is not None,
        }
        try:
            async with self.daemon.stream("POST", self._path("exec"), body) as answer:
                async for kind, content in _frames(answer.aiter_raw()):
                    if kind == _RESULT:
                        return self._result(json.loads(content))
                    if on_output is not None:
                        on_output("stdout" if kind == 1 else "stderr", content)
            raise DaemonDownError(f"The daemon {self.daemon.address} ended its answer early.")
        except (DaemonDownError, BoxLostError) as error:
            raise await self._why(error) from error

    def _result(self, result: Mapping[str, Any]) -> BoxResult:
        if "error" in result:
            raise (BoxLostError if result["lost"] else BoxError)(result["error"])
        return BoxResult(**result)

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        tty: bool = False,
    ) -> RemoteProcess:
        """Start a program and return at once."""
        answer = await self.call("POST", "processes", {**_command(command, cwd, env, user), "tty": tty})
        number = answer.json()["number"]
        return RemoteProcess(lambda method, path, body: self.call(method, f"processes/{number}/{path}", body))

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file, or the content of a directory, to the path `target` of the box (`Box.upload`)."""
        with tempfile.TemporaryFile() as stream:
            folder = await asyncio.to_thread(pack, source, PurePosixPath(target), stream)
            await self.call("PUT", "files", file=stream, params={"folder": folder})

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """Copy a file, or the content of a directory, to `target` on this machine (`Box.download`)."""
        self._check_alive()
        params = {"path": source, "max_bytes": str(max_bytes)}
        with tempfile.TemporaryFile() as stream:
            try:
                async with self.daemon.stream("GET", self._path("files"), params=params) as answer:
                    async for piece in answer.aiter_raw():
                        await asyncio.to_thread(stream.write, piece)
                        if stream.tell() > archive_limit(max_bytes):
                            raise too_large(source, max_bytes)
            except (DaemonDownError, BoxLostError) as error:
                raise await self._why(error) from error
            below = bytes.fromhex(answer.headers["x-below"]).decode()
            is_file = answer.headers["x-is-file"] == "1"
            copying = partial(unpack, stream, source, target, max_bytes, is_file=is_file, below=below)
            await asyncio.to_thread(copying)

    async def forward(self, port: int, host: str, host_port: int) -> None:
        """Forward connections to 127.0.0.1:port of the box to an address of the daemon's network.

        Raises `UserError` for addresses of the daemon's own machine, and if its boxes have no network.
        """
        await self.call("POST", "forward", {"port": port, "host": host, "host_port": host_port})

    async def kill_processes(self) -> None:
        """Kill every process of the box but its first."""
        await self.call("POST", "kill")

    async def fork(self) -> RemoteBox:
        """Return another box of the same daemon with a copy of the current files; processes are not copied."""
        return await self._copy(self)

    async def stop(self) -> None:
        """End the box and remove everything that belongs to it. An unreachable daemon ends it with its lease."""
        if self._is_alive:
            self.end()
            with suppress(BoxError, UserError):
                await self.daemon.call("DELETE", f"/v1/boxes/{self.generation}", seconds=_STOP_SECONDS)


def _command(
    command: str | Sequence[str], cwd: str | None, env: Mapping[str, str] | None, user: str | None
) -> dict[str, Any]:
    check_variables(env or {})
    return {
        "command": command if isinstance(command, str) else list(command),
        "cwd": cwd,
        "env": dict(env or {}),
        "user": user,
    }


async def _frames(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    data = b""
    async for piece in pieces:
        data += piece
        while len(data) >= _HEAD and len(data) >= (end := _HEAD + int.from_bytes(data[1:_HEAD], "big")):
            yield data[0], data[_HEAD:end]
            data = data[end:]
