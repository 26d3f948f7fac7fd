"""Fake daemons that answer as a test tells them to."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentloop.sandboxes.client.client import SandboxClient

DONE = {
    "status": "Success",
    "message": "",
    "compile_result": None,
    "run_result": {"status": "Finished", "execution_time": 0.01, "return_code": 0, "stdout": "1\n", "stderr": ""},
    "executor_pod_name": None,
    "files": {},
}
HEALTH = {"level": "slots", "slots": 4, "draining": False}


class Server:
    """A fake daemon.

    `answer(method, path, body)` returns a JSON value, (status, JSON value), bytes, or a failure: "reset" or "half".
    """

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[str] = []
        self.heads: list[bytes] = []
        self.answer: Callable[[str, str, Any], Any] = lambda method, path, body: DONE
        self.health: Callable[[], Any] = lambda: HEALTH
        self.someone_left = asyncio.Event()
        self._serving: set[asyncio.Task] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def runs(self) -> int:
        return self.asked.count("POST /run_code")

    @property
    def connections(self) -> int:
        return len(self._writers)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(task := asyncio.create_task(self._serve(reader, writer)))
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._serve_one(reader, writer):
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head.lower())
        method, path, _ = head.decode().split(" ", 2)
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)
        self.asked.append(f"{method} {path}")
        answer = self._answer(method, path, json.loads(body or b"null"))
        if asyncio.iscoroutine(answer):
            answer = await self._unless_it_leaves(reader, answer)
        if answer == "reset":
            writer.transport.abort()
            return False
        status, content = answer if isinstance(answer, tuple) else (200, answer)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        length = 2 * len(data) if answer == "half" else len(data)
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, length) + data)
        return answer != "half"

    def _answer(self, method: str, path: str, body: Any) -> Any:
        match path:
            case "/v1/ping":
                return "pong"
            case "/v1/health":
                return self.health()
        return self.answer(method, path, body)

    async def _unless_it_leaves(self, reader: asyncio.StreamReader, answer: Any) -> Any:
        work, left = asyncio.ensure_future(answer), asyncio.ensure_future(reader.read(1))
        await asyncio.wait([work, left], return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        await asyncio.wait([left])
        if not work.done():
            work.cancel()
            self.someone_left.set()
            raise ConnectionResetError
        return work.result()


@pytest.fixture
def servers() -> Callable[..., contextlib.AbstractAsyncContextManager]:
    """Return `servers(number, **options)`, which starts fake daemons and a client of them all with these options."""

    @asynccontextmanager
    async def make(number: int = 1, **options: Any) -> AsyncIterator[tuple]:
        started = [Server() for _ in range(number)]
        for server in started:
            await server.start()
        client = SandboxClient([server.url for server in started], **options)
        try:
            yield (*started, client)
        finally:
            await client.close()
            for server in started:
                await server.stop()

    return make


@pytest.fixture
def server() -> Server:
    """Return a fake daemon that is not started."""
    return Server()
