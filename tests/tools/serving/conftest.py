"""Daemons over real HTTP in the event loop of the test, with real slots or with a fake sandbox."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest
import pytest_asyncio

from agentloop.sandboxes import CellResult, Execution, ExecutionResult, Load, SessionSettings
from agentloop.sandboxes.levels.slots import Slots
from agentloop.tools.serving.http.listening import address_of, listen
from agentloop.tools.serving.lifecycle import Server
from agentloop.tools.serving.state.daemon import Daemon
from agentloop.tools.serving.state.settings import Settings


class Served(httpx.AsyncClient):
    """A client of a daemon, and the daemon."""

    def __init__(self, daemon: Daemon, server: Server, address: str) -> None:
        super().__init__(base_url=address, timeout=60, trust_env=False)
        self.daemon = daemon
        self.server = server
        self.port = int(address.rpartition(":")[2])

    async def run(self, code: str = "print(1)", **fields) -> dict:
        response = await self.post("/run_code", json={"code": code, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    async def raw(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def send_only(self, method: str, path: str, body: dict) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request and return its connection."""
        content = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
        return await self.raw(head.encode() + content)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(sandbox, **settings) -> AsyncIterator[Served]:
    daemon = Daemon(Settings(**{"port": 0, "slots": 4, **settings}), sandbox)
    listener: socket.socket = listen("127.0.0.1", 0)
    async with daemon.running():
        server = Server(daemon)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        async with Served(daemon, server, address_of(listener)) as served:
            yield served
        server.should_exit = True
        await task


class ByHand:
    """A fake sandbox. `answer(execution)` returns the result or raises; the code "wait" runs until `release` is set."""

    level = "by-hand"

    def __init__(self) -> None:
        self.executions: list[Execution] = []
        self.queue_seconds: list[float] = []
        self.settings: list[SessionSettings] = []
        self.release = asyncio.Event()
        self.running = self.cancelled = 0
        self.begun = asyncio.Event()
        self.answer: Callable[[Execution], ExecutionResult] = lambda execution: result()

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def run(self, execution: Execution, *, max_queue_seconds: float = float("inf")) -> ExecutionResult:
        self.executions.append(execution)
        self.queue_seconds.append(max_queue_seconds)
        if execution.code == "wait":
            await self.wait()
        return self.answer(execution)

    async def wait(self) -> None:
        self.running += 1
        self.begun.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def session(self, settings: SessionSettings | None = None) -> "SessionByHand":
        self.settings.append(settings or SessionSettings())
        return SessionByHand(self)

    def load(self) -> Load:
        return Load(slots=4, busy=self.running, waiting=0, sessions=len(self.settings))


class SessionByHand:
    def __init__(self, sandbox: ByHand) -> None:
        self.id = "1"
        self.sandbox = sandbox
        self.closed = False

    async def run(self, code: str, *, max_seconds: float = 10.0) -> CellResult:
        if code == "wait":
            await self.sandbox.wait()
        return CellResult(stdout=f"{code}\n", stderr="", seconds=0.0)

    async def close(self) -> None:
        self.closed = True


def result(**fields) -> ExecutionResult:
    return ExecutionResult(**{"stdout": "1\n", "stderr": "", "return_code": 0, "seconds": 0.01, **fields})


@pytest.fixture
def make_result() -> Callable[..., ExecutionResult]:
    return result


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Awaitable[None]]:
    """Return `until`, which waits until a condition is true, for at most 20 s."""
    return until


@pytest.fixture
def by_hand() -> Callable[..., AbstractAsyncContextManager[tuple[Served, ByHand]]]:
    """Return `by_hand(**settings)`, which yields a client of a daemon with a fake sandbox, and that sandbox."""

    @asynccontextmanager
    async def make(**settings) -> AsyncIterator[tuple[Served, ByHand]]:
        sandbox = ByHand()
        async with serving(sandbox, **settings) as served:
            yield served, sandbox

    return make


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Served]:
    """A client of a daemon with four real slots; one for all tests of a module, which run in the module's loop."""
    async with serving(Slots(slots=4, packages=["numpy"]), packages=("numpy",)) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quiet() -> AsyncIterator[tuple[Served, ByHand]]:
    """Like `by_hand`, but one for all tests of a module, which run in the module's loop."""
    sandbox = ByHand()
    async with serving(sandbox) as served:
        yield served, sandbox
