"""`Toolbox`: the tools that the daemon offers. Each is started when it is first called."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from fastapi import HTTPException

from agentloop.errors import UserError, blaming, nearest
from agentloop.sandboxes.interface.sandbox import Sandbox
from agentloop.tools import registry
from agentloop.tools.base import Tool
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.tools.serving.state.leases import Leases
from agentloop.tools.sessions import ToolSessions
from agentloop.tools.toolset import Toolset

_logger = logging.getLogger(__name__)

_WITH_OPTIONS = re.compile(r"(?P<name>[^={]+)=(?P<options>\{.*\})", re.DOTALL)


class Toolbox:
    """The tools of `specs`, and the registered tools that need no options and reach nothing of this host.

    Code interpreters use `sandbox`.

    Raises `UserError` if one of `specs` cannot be loaded.
    """

    def __init__(self, specs: Sequence[str], max_sessions: int, sandbox: Sandbox) -> None:
        named = [tool for spec in specs for tool in _named(spec)]
        taken = {tool.name for tool in named}
        self.toolset = Toolset([*named, *_registered(taken)])
        for tool in self.toolset.tools.values():
            if isinstance(tool, CodeInterpreter):
                tool.sandbox = sandbox  # shared by all, with the level and the limits of the daemon
        self.sessions: Leases[ToolSessions] = Leases(
            "tool session", "/v1/tools/sessions", lambda item: item.close(), max_sessions, "--max-sessions"
        )
        self._starting = {name: asyncio.Lock() for name in self.toolset.tools}
        self._started: set[str] = set()

    async def ready(self, name: str) -> Tool:
        """Return the started tool. Raises `HTTPException`: 404 for an unknown name, 501 if it cannot start here."""
        tools = self.toolset.tools
        if name not in tools:
            raise HTTPException(404, f"Unknown tool {name!r}.{nearest(name, tools)} Tools: {', '.join(tools)}.")
        if name not in self._started:
            async with self._starting[name]:
                if name not in self._started:
                    try:
                        with blaming(f"The tool {name!r} cannot start"):
                            await tools[name].start()
                    except UserError as error:
                        raise HTTPException(501, f"The tool {name!r} does not work here: {error}") from error
                    self._started.add(name)
        return tools[name]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with self.sessions.kept():
                yield
        finally:
            await self.toolset.shutdown()


def _named(spec: str) -> list[Tool]:
    """Load the tools of a spec. Raises `UserError`."""
    match = _WITH_OPTIONS.fullmatch(spec)
    if match is None:
        return registry.load_all(spec)
    try:
        return registry.load_all(match["name"], **json.loads(match["options"]))
    except json.JSONDecodeError as error:
        raise UserError(f"The options of --tool {match['name']} are not a JSON object: {error}.") from error


def _registered(taken: Collection[str]) -> list[Tool]:
    """Return the registered tools that need no options, reach nothing of this host, and have a schema and free name."""
    tools: dict[str, Tool] = {}
    for name in registry.TOOLS:
        try:
            loaded = Toolset(registry.load_all(name)).tools
        except UserError as error:
            _logger.info("Not offered: %s With options: --tool '%s={...}'.", error, name)
        else:
            free = {each: tool for each, tool in loaded.items() if each not in taken and each not in tools}
            tools |= {each: tool for each, tool in free.items() if not tool.by_name_only}
    return list(tools.values())
