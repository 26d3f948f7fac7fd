"""`Daemon`: the state that all routes share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import Request

from agentloop import sandboxes
from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface.sandbox import CellResult, Sandbox, Session
from agentloop.sandboxes.levels.registry import LEVELS
from agentloop.sandboxes.levels.slot_template import PreloadError
from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.http.bodies import Reader
from agentloop.tools.serving.state.boxes import Boxes
from agentloop.tools.serving.state.leases import Leases
from agentloop.tools.serving.state.metrics import Metrics
from agentloop.tools.serving.state.settings import Settings
from agentloop.tools.serving.state.toolbox import Toolbox

_MAX_NOTEBOOKS = 64


class Daemon:
    """The sandbox, its sessions, the tools and the metrics of one process.

    `sandbox` defaults to the one of `settings`. Raises `UserError` if the sandbox or a tool cannot be created.
    """

    def __init__(self, settings: Settings, sandbox: Sandbox | None = None) -> None:
        self.settings = settings
        self.sandbox = sandbox or make_sandbox(settings)
        self.reader = Reader(
            max_body_mb=settings.max_body_mb,
            body_seconds=settings.body_seconds,
            bounds={"max_seconds": settings.max_seconds, "max_memory_mb": settings.max_memory_mb},
        )
        self.sessions: Leases[Session] = Leases(
            "session", "/v1/sessions", lambda session: session.close(), settings.max_sessions, "--max-sessions"
        )
        self.toolbox = Toolbox(settings.tools, settings.max_sessions, self.sandbox)
        self.boxes = Boxes(settings)
        self.metrics = Metrics(self.sandbox.load, lambda: len(self.toolbox.sessions))
        self.draining = False
        self.notebooks = asyncio.Semaphore(2)
        """Semaphore for /run_jupyter, whose sessions queue like executions."""

    @classmethod
    def of(cls, request: Request) -> Daemon:
        daemon: Daemon = request.app.state.daemon
        return daemon

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the sandbox and the tools until the block ends. Raises `UserError` if the sandbox cannot start."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.sandbox.close)
            await self._start_sandbox()
            self.notebooks = asyncio.Semaphore(min(max(2, self.sandbox.load().slots), _MAX_NOTEBOOKS))
            await stack.enter_async_context(self.sessions.kept())
            await stack.enter_async_context(self.toolbox.running())
            await stack.enter_async_context(self.boxes.running())
            yield

    def check_end(self, result: CellResult) -> None:
        """Raise `SandboxError` if the session of a cell may have been killed because the daemon ends."""
        if self.draining and result.session_ended == "killed":
            raise SandboxError(outcomes.SHUTTING_DOWN)

    async def _start_sandbox(self) -> None:
        try:
            await self.sandbox.start()
        except UserError as error:
            if self.settings.isolation == "auto" or isinstance(error, PreloadError):
                raise
            raise UserError(f"{error} {await _other_level()}") from error


def make_sandbox(settings: Settings) -> Sandbox:
    """Create the sandbox of the settings, without starting it. Raises `UserError`."""
    options = _options(settings)
    named = settings.isolation in LEVELS  # not "auto"
    if named and "max_sessions" not in LEVELS.get(settings.isolation).options():
        del options["max_sessions"]
    return sandboxes.create(settings.isolation, **options)


def _options(settings: Settings) -> dict[str, Any]:
    # The daemon itself limits sessions. The sandbox must have room for all of them, those of tools included.
    options: dict[str, Any] = {"max_sessions": 2 * settings.max_sessions + _MAX_NOTEBOOKS}
    given = {name: getattr(settings, name) for name in ("slots", "disk_mb", "preload", "packages")}
    options |= {name: value for name, value in given.items() if value}
    return options | dict(settings.level_options)


async def _other_level() -> str:
    """Return a hint that names a level which works, instead of the requested one."""
    other = sandboxes.create("auto", max_sessions=1)
    try:
        await other.start()
    except UserError:
        return "No other level works on this machine either."
    try:
        return f"On this machine --isolation {other.level} works."
    finally:
        await other.close()
