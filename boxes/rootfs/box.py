"""`RootfsBox`: a box in namespaces of the kernel."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from agentloop.boxes.copies import archive_limit, pack, too_large, unpack
from agentloop.boxes.inside.files import SINGLE_FILE, TOO_LARGE
from agentloop.boxes.interface.archives import SentArchive
from agentloop.boxes.interface.box import BoxError, BoxLostError, BoxResult, OnOutput
from agentloop.boxes.interface.spec import BoxSpec, check_variables
from agentloop.boxes.network import proxy
from agentloop.boxes.network.relay import Handler, Relays, to_address
from agentloop.boxes.rootfs.connection import Connection
from agentloop.boxes.rootfs.process import RootfsProcess
from agentloop.sandboxes.inside import channel
from agentloop.sandboxes.worlds.streams import Drain, memory_file

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ERROR_BYTES = 1 << 12


class RootfsBox:
    """A running box, made by its provider. It belongs to the event loop that started it."""

    def __init__(
        self, name: str, spec: BoxSpec, connection: Connection, copy: Callable[[RootfsBox], Awaitable[RootfsBox]]
    ) -> None:
        """`copy` starts a box with the files of this one."""
        self._copy = copy
        self.id = name
        self.generation = name  # a name is used once
        self.spec = spec
        self._connection = connection
        self._relays = Relays()
        connection.process.ended.add_done_callback(lambda _: self._relays.close())

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
        """Run a command to its end (`Box.exec`)."""
        stdout = Drain(output_bytes, on_output and partial(on_output, "stdout"))
        stderr = Drain(output_bytes, on_output and partial(on_output, "stderr"))
        source = memory_file([stdin])
        start = time.monotonic()
        timed_out = False
        try:
            request = self._request(command, cwd, env, user, tty=False)
            number, ending = self._connection.run(request, [source, stdout.writer, stderr.writer])
            for fd in (source, stdout.writer, stderr.writer):
                os.close(fd)
            source = -1
            try:
                async with asyncio.timeout(timeout):
                    code: int | None = await asyncio.shield(ending)
            except TimeoutError:
                timed_out, code = True, None
                self._connection.tell("kill", number)
                await ending
            except asyncio.CancelledError:
                if self._connection.is_alive:
                    self._connection.tell("kill", number)
                raise
            seconds = time.monotonic() - start
            texts = [drain.finish().decode(errors="replace") for drain in (stdout, stderr)]
        finally:
            for drain in (stdout, stderr):
                drain.close()
            if source >= 0:
                for fd in (source, stdout.writer, stderr.writer):
                    os.close(fd)
        return BoxResult(
            stdout=texts[0],
            stderr=texts[1],
            return_code=code,
            seconds=seconds,
            timed_out=timed_out,
            output_truncated=stdout.truncated or stderr.truncated,
        )

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        tty: bool = False,
    ) -> RootfsProcess:
        """Start a program and return at once."""
        request = self._request(command, cwd, env, user, tty=tty)
        return RootfsProcess(self._connection, request, tty=tty)

    def _request(
        self,
        command: str | Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        *,
        tty: bool,
    ) -> dict[str, Any]:
        check_variables(env or {})
        is_text = isinstance(command, str)
        variables = {"PATH": _PATH, **({"TERM": "xterm"} if tty else {}), **self.spec.env, **(env or {})}
        return {
            "argv": [command] if is_text else list(command),
            "shells": [["bash", "-c", command], ["sh", "-c", command]] if is_text else [],
            "cwd": cwd or self.spec.workdir or "/",
            "env": dict(variables),
            "user": user or self.spec.user or "0:0",
            "tty": tty,
        }

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file, or the content of a directory, to the path `target` of the box (`Box.upload`)."""
        with tempfile.TemporaryFile() as stream:
            folder = await asyncio.to_thread(pack, source, PurePosixPath(target), stream)
            await self.receive_archive(stream, folder)

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """Copy a file, or the content of a directory, to `target` on this machine (`Box.download`)."""
        with tempfile.TemporaryFile() as stream:
            sent = await self.send_archive(source, stream, max_bytes)
            await asyncio.to_thread(unpack, stream, source, target, max_bytes, is_file=sent.is_file)

    async def receive_archive(self, stream: IO[bytes], folder: str) -> None:
        """Unpack a tar archive into a directory of the box (`ArchiveBox`)."""
        await self._transfer("receive", folder, stream.fileno())

    async def send_archive(self, source: str, stream: IO[bytes], max_bytes: int) -> SentArchive:
        """Write a file, or the content of a directory, as a tar archive (`ArchiveBox`)."""
        code = await self._transfer("send", source, stream.fileno(), max_bytes=archive_limit(max_bytes))
        if code == TOO_LARGE:
            raise too_large(source, max_bytes)
        return SentArchive(is_file=code == SINGLE_FILE)

    async def _transfer(self, op: str, path: str, stream: int, **fields: int) -> int:
        errors = Drain(_ERROR_BYTES)
        try:
            try:
                _, ending = self._connection.request(op, [stream, errors.writer], path=path, **fields)
            finally:
                os.close(errors.writer)
            code = await asyncio.shield(ending)
            if code not in (0, SINGLE_FILE, TOO_LARGE):
                verb = "written to" if op == "receive" else "read from"
                raise BoxError(f"{path} cannot be {verb} the box: {errors.finish().decode(errors='replace')}")
            return code
        finally:
            errors.close()

    async def forward(self, port: int, host: str, host_port: int) -> None:
        """Forward connections to 127.0.0.1:port of the box to an address of this machine's network (`Box.forward`)."""
        await self._relay(port, to_address(host, host_port))

    async def open_network(self) -> None:
        """Start the proxy of a box that may reach hosts. Raises `BoxError`."""
        if self.spec.network.mode != "none":
            await self._relay(proxy.PORT, proxy.Proxy(self.spec.network).serve)

    async def _relay(self, port: int, handler: Handler) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                _, ending = self._connection.request("listen", [theirs.fileno()], port=port)
            await ending
            _, (listener,) = channel.receive(ours)
        await self._relays.serve(socket.socket(fileno=listener), handler)

    async def kill_processes(self) -> None:
        """Kill every process of the box but its first."""
        _, ending = self._connection.request("kill_all")
        await ending

    async def fork(self) -> RootfsBox:
        """Return another box with a copy of the current files; processes are not copied."""
        return await self._copy(self)

    async def fill_from(self, original: RootfsBox) -> None:
        """Take over the files of another box of the same image, before anything runs here. Raises `BoxError`."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        errors = Drain(_ERROR_BYTES)
        try:
            try:
                self._connection.lend(reader)
                _, sent = original._connection.request("copy", [writer, errors.writer])
            finally:
                for fd in (reader, writer, errors.writer):
                    os.close(fd)
            _, received = self._connection.request("ready")
            await asyncio.wait([sent, received])
            if isinstance(sent.exception(), BoxLostError) or sent.result() != 0:
                received.exception()  # a consequence of the other error
                text = errors.finish().decode(errors="replace")
                raise sent.exception() or BoxError(f"The box {original.id} cannot be copied: {text}.")
            if error := received.exception():
                raise BoxError(f"The copy of the box {original.id} cannot be started: {error}.") from error
        finally:
            errors.close()

    async def stop(self) -> None:
        """End the box and remove everything that belongs to it."""
        self._connection.close()
        await asyncio.shield(self._connection.process.ended)
