"""MCP over stdio: the server is a child process, and messages are lines on its stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from agentloop.tools.mcp.protocol import McpError, Message

_LINE_BYTES = 64 << 20
_STDERR_BYTES = 2000
_END_SECONDS = 2.0
_EXIT_SECONDS = 1.0
"""Maximum seconds between the end of a server's output and its exit, and between that and the end of stderr."""
_KEPT_ENVIRONMENT = ("HOME", "LANG", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
"""Variables that a server inherits. Others may be secrets, and the option `env` must name them."""


class StdioTransport:
    """Transport that starts the server, and finally kills it and all processes that it started."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: str | None) -> None:
        self._command = command
        self._env = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ} | dict(env)
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stderr = b""
        self._problem = ""
        """Why the session has ended although the server has not exited."""
        self.is_lost = False
        self._on_request: Callable[[Message], Message | None] = lambda message: None

    async def open(self) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                limit=_LINE_BYTES,
                env=self._env,
                cwd=self._folder,
                start_new_session=True,  # so that close() can kill its children too
            )
        except OSError as error:
            if self._folder is not None and error.filename == self._folder:
                raise McpError(f"its folder {self._folder} cannot be used: {error.strerror}") from error
            raise McpError(f"{self._command[0]} cannot be started: {error.strerror}") from error
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    async def request(self, message: Message, on_request: Callable[[Message], Message | None]) -> Message:
        self._on_request = on_request
        future = self._waiting[message["id"]] = asyncio.get_running_loop().create_future()
        try:
            await self.notify(message)
            return await future
        except asyncio.CancelledError:
            cancelled = {"requestId": message["id"], "reason": "no longer needed"}
            with contextlib.suppress(BrokenPipeError):
                self._write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
            raise
        finally:
            self._waiting.pop(message["id"], None)
            if not future.cancel() and not future.cancelled():
                future.exception()  # the reader set it, too, after the write had failed

    async def notify(self, message: Message) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._write(message)
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            self.is_lost = True
            await self._last_words()
            raise self._ended() from error

    def negotiated(self, version: str) -> None:
        """Do nothing: messages on stdio do not carry the version."""

    def _write(self, message: Message) -> None:
        """Write a message. Raises `BrokenPipeError` if the session has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        if self.is_lost or self._process.returncode is not None or self._process.stdin.is_closing():
            raise BrokenPipeError
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                self._receive(line)
        except ValueError:
            self._problem = f"the server {self._command[0]} wrote a line of more than {_LINE_BYTES >> 20} MiB"
        self.is_lost = True
        await self._last_words()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._ended())

    def _receive(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # some servers print other lines to stdout
        if not isinstance(message, dict):
            return
        if "method" in message:
            if (answer := self._on_request(message)) is not None:
                with contextlib.suppress(
                    BrokenPipeError
                ):  # the server has exited, and the reader is about to report it
                    self._write(answer)
        elif (future := self._waiting.get(message.get("id", 0))) is not None and not future.done():
            future.set_result(message)

    async def _read_errors(self) -> None:
        """Keep the end of stderr for error messages."""
        assert self._process is not None
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(65536):
            self._stderr = (self._stderr + data)[-_STDERR_BYTES:]

    async def _last_words(self) -> None:
        """Wait until the server has exited and the end of stderr is read, unless it keeps running."""
        assert self._process is not None
        if self._problem:
            return
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._problem = f"the server {self._command[0]} closed its input or output"
            return
        await asyncio.wait(self._tasks[1:], timeout=_EXIT_SECONDS)

    def _ended(self) -> McpError:
        if self._problem:
            return McpError(self._problem)
        last = self._stderr.decode(errors="replace").strip().rpartition("\n")[2].rstrip(".")
        return McpError(f"the server {self._command[0]} exited" + (f": {last}" if last else ""))

    async def close(self) -> None:
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()  # asks the server to exit
        try:
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
