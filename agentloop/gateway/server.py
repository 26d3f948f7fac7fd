"""`Gateway`: the APIs of OpenAI and Anthropic for an engine, in the process and event loop of the engine.

    async with gateway.session(limits=..., sampling=...) as (session, endpoint):
        ...                        # an agent calls endpoint.base_url
    session.trajectories()         # its token streams

It listens while a session is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from agentloop.envs.agent.interface.endpoint import Endpoint
from agentloop.errors import UserError
from agentloop.gateway.session import Session
from agentloop.tools.serving.http.listening import open_listener

if TYPE_CHECKING:
    from agentloop.engines.base import Engine
    from agentloop.rendering.base import Renderer

_IDLE_SECONDS = 600
"""Seconds that a connection may be idle: agents wait for their tools."""


class Gateway:
    """One listening socket for all episodes of an engine.

    `host` is the address to listen on; agents on other machines need one other than the default. They connect to
    `advertised`. A secret key identifies each episode.
    """

    def __init__(
        self, engine: Engine, renderer: Renderer, *, model: str = "policy", host: str = "127.0.0.1",
        advertised: str | None = None,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._renderer = renderer
        self._model = model
        self._host = host
        self._advertised = advertised or host
        self._sessions: dict[str, Session] = {}
        self._server: _Server | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def session(self, **options: Any) -> AsyncIterator[tuple[Session, Endpoint]]:
        """Open a session (`options` are those of `Session`) and its endpoint for the agent.

        Raises `UserError` if the gateway cannot listen.
        """
        session = Session(self._engine, self._renderer, **options)
        key = secrets.token_urlsafe(18)
        self._sessions[key] = session
        try:
            address = await self._listening()
            yield session, Endpoint(f"{address}/{key}/v1", key, self._model)
        finally:
            try:
                await session.close()
            finally:
                del self._sessions[key]
                await self._stop_if_idle()

    async def _listening(self) -> str:
        async with self._turn:
            if self._server is None:
                self._server = await _Server.start(self._sessions, self._renderer, self._model, self._host)
            host = f"[{self._advertised}]" if ":" in self._advertised else self._advertised
            return f"http://{host}:{self._server.port}"

    async def _stop_if_idle(self) -> None:
        async with self._turn:
            if not self._sessions and self._server is not None:
                server, self._server = self._server, None
                await server.stop()


class _Server:
    """A uvicorn server in this event loop."""

    def __init__(self, server: Any, listener: socket.socket) -> None:
        self._server = server
        self._task = asyncio.ensure_future(server.serve(sockets=[listener]))
        self.port: int = listener.getsockname()[1]

    @classmethod
    async def start(cls, sessions: dict[str, Session], renderer: Renderer, model: str, host: str) -> _Server:
        """Start the server. Raises `UserError` if packages are missing or it cannot listen on the address."""
        load_server()
        import uvicorn

        from agentloop.gateway.application import application
        from agentloop.tools.serving.http.protocol import BoundedProtocol

        class Server(uvicorn.Server):
            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # signals belong to the run

        config = uvicorn.Config(
            application(sessions, renderer, model),
            http=BoundedProtocol,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        return cls(Server(config), _listen(host))  # early connections wait in the backlog

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._task


def load_server() -> None:
    """Import the web server before the first episode: it takes a second. Raises `UserError` if it is missing."""
    try:
        for module in ("uvicorn", "agentloop.tools.serving.http.protocol", "agentloop.gateway.application"):
            importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"The gateway for agent programs needs {error.name}: pip install 'agentloop[serve]'."
        ) from error


def _listen(host: str) -> socket.socket:
    try:
        return open_listener(host, 0)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"The gateway for agents cannot listen on {host}: {reason}. Set the option `host`.") from error
