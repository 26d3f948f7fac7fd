"""`Gateway`: OpenAI's chat API in front of an engine, in the process and the event loop of the engine.

    async with gateway.session(limits=..., sampling=...) as (session, endpoint):
        ...                        # an agent calls endpoint.base_url
    session.trajectories()         # what came of it

It listens while there are sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from agentloop.envs.agent.endpoint import Endpoint
from agentloop.errors import UserError
from agentloop.gateway.session import Session
from agentloop.tools.serving.http.listening import open_listener

if TYPE_CHECKING:
    from agentloop.engines.base import Engine
    from agentloop.rendering.base import Renderer

_IDLE_SECONDS = 600
"""How long a connection may rest: agents wait for their tools."""


class Gateway:
    """One listening socket for all episodes of an engine.

    `host` is where it listens: agents elsewhere need more than the default. `advertised` is the name under which they
    reach it. Episodes are told apart by secret keys.
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
        """A session (`options` are those of `Session`), and where its agent finds it. Raises `UserError` where the
        gateway cannot listen."""
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
    """uvicorn in this event loop."""

    def __init__(self, server: Any, listener: socket.socket) -> None:
        self._server = server
        self._task = asyncio.ensure_future(server.serve(sockets=[listener]))
        self.port: int = listener.getsockname()[1]

    @classmethod
    async def start(cls, sessions: dict[str, Session], renderer: Renderer, model: str, host: str) -> _Server:
        """Raises `UserError` where the packages are missing, or the address cannot be listened on."""
        try:
            import uvicorn

            from agentloop.gateway.application import application
        except ImportError as error:
            raise UserError(
                f"Agent programs are served over HTTP, which needs {error.name}: pip install 'agentloop[serve]'."
            ) from error

        class Server(uvicorn.Server):
            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # signals belong to the run

        config = uvicorn.Config(
            application(sessions, renderer, model),
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        return cls(Server(config), _listen(host))  # what connects before it accepts waits in the backlog

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._task


def _listen(host: str) -> socket.socket:
    try:
        return open_listener(host, 0)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"The gateway for agents cannot listen on {host}: {reason}. Set the option `host`.") from error
