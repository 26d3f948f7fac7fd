"""`serve`: the life of the daemon from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from agentloop.errors import UserError
from agentloop.sandboxes.levels.registry import LEVELS
from agentloop.tools.serving.app import application
from agentloop.tools.serving.http.listening import BACKLOG, address_of, listen
from agentloop.tools.serving.http.protocol import BoundedProtocol
from agentloop.tools.serving.routes.front import access_log
from agentloop.tools.serving.state.daemon import Daemon
from agentloop.tools.serving.state.settings import Settings

_logger = logging.getLogger(__name__)

_IDLE_SECONDS = 75.0
"""Seconds that an idle connection stays open: longer than at the clients, so that they close first."""


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish running work within `drain_seconds`. A second signal ends it at once.

    `announce` gets the start message once requests are accepted. Raises `UserError` if the daemon cannot start.
    """
    _prepare_logs(settings.log_level)
    _allow_many_connections()
    daemon = Daemon(settings)
    with (
        contextlib.closing(listen(settings.host, settings.port)) as listener,
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        runner.run(_serve(daemon, listener, announce))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # uvloop has no builds for some platforms
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(daemon: Daemon, listener: socket.socket, announce: Callable[[str], None]) -> None:
    async with daemon.running():
        server = Server(daemon)
        # Keep the handlers to the end, so that no signal interrupts the closing of the sandbox.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.stop, number.name)
        announce(_banner(daemon, address_of(listener)))
        gc.collect()
        gc.freeze()  # existing objects live to the end, so the collector need not visit them
        await server.serve(sockets=[listener])


class Server(uvicorn.Server):
    """A uvicorn server that drains at the first signal and stops at the second."""

    def __init__(self, daemon: Daemon) -> None:
        settings = daemon.settings
        config = uvicorn.Config(
            application(daemon),
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            limit_concurrency=settings.max_connections,
            timeout_keep_alive=int(_IDLE_SECONDS),
            timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        )
        super().__init__(config)
        self._daemon = daemon

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # at its end uvicorn would raise the signal again, before the sandbox is closed

    def stop(self, reason: str) -> None:
        """Finish running requests and end; a second call ends at once."""
        _logger.info("%s: %s", reason, "ending at once" if self.should_exit else "draining")
        self.force_exit = self.should_exit
        self.should_exit = True
        self._daemon.draining = True


def _banner(daemon: Daemon, address: str) -> str:
    """Return the start message: a few plain lines, the first with the address."""
    settings, level, load = daemon.settings, daemon.sandbox.level, daemon.sandbox.load()
    meaning = f": {LEVELS.get(level).protects}" if level in LEVELS else ""
    lines = [
        f"agentloop tools: {address}",
        f"  routes     {address}/docs, in a browser",
        f"  isolation  {level}{meaning}",
        f"  slots      {load.slots} at once, {settings.memory_mb} MiB each unless a request says otherwise",
        f"  preload    {', '.join(settings.preload) or 'nothing'}",
        f"  packages   {', '.join(settings.packages) or 'the standard library'}",
        *([f"  boxes      {settings.boxes}, at most {settings.max_boxes}"] if settings.boxes else []),
        f"  token      {'required' if settings.token else 'none: only this machine can reach the daemon'}",
    ]
    return "\n".join(lines)


def _prepare_logs(level: str) -> None:
    """Log to stderr: access lines without a prefix, so that programs can parse them, and other lines as plain text."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise UserError(f"--log-level {level!r} must be debug, info, warning or error.")
    logging.basicConfig(level=number, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The start message already has the address and the level.
    for name in ("uvicorn.error", "agentloop.sandboxes.levels.auto"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    access_log.addHandler(handler)
    access_log.propagate = False


def _allow_many_connections() -> None:
    """Raise the limit of descriptors to the maximum, because each connection and each execution needs some."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
