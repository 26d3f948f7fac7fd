"""`Toolbox`: the tools that the daemon offers. Those of `--tool` start with it, the others at their first call."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from fastapi import HTTPException

from agentloop.errors import UserError, blaming, nearest
from agentloop.sandboxes.interface.sandbox import Sandbox
from agentloop.tools import registry
from agentloop.tools.base import Tool
from agentloop.tools.code_interpreter import CodeInterpreter
from agentloop.tools.serving.http.bodies import meant
from agentloop.tools.serving.state.leases import Leases
from agentloop.tools.sessions import ToolSessions
from agentloop.tools.toolset import Toolset

_logger = logging.getLogger(__name__)

_NEEDS_BOX = (
    "works only in the box of an episode, and calls through a daemon have none: name it in env.tools of a run whose "
    "environment has boxes, such as harbor."
)


class Toolbox:
    """The tools of `specs`, and the registered tools that need no options and reach nothing of this host.

    Code interpreters use `sandbox`. Raises `UserError` if one of `specs` cannot be loaded.
    """

    def __init__(self, specs: Sequence[str], max_sessions: int, sandbox: Sandbox) -> None:
        named = [tool for spec in specs for tool in _named(spec)]
        self._named = {tool.name for tool in named}
        self.toolset = Toolset([*named, *_registered(self._named)])
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
            raise HTTPException(404, _absence(name, tools))
        try:
            await self._start(name)
        except UserError as error:
            raise HTTPException(501, f"The tool {name!r} does not work here: {error}") from error
        return tools[name]

    async def _start(self, name: str) -> None:
        async with self._starting[name]:
            if name not in self._started:
                with blaming(f"The tool {name!r} cannot start"):
                    await self.toolset.tools[name].start()
                self._started.add(name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the tools until the block ends. Raises `UserError` if one of `specs` cannot start."""
        try:
            for name in self._named:
                await self._start(name)
            async with self.sessions.kept():
                yield
        finally:
            await self.toolset.shutdown()


def _absence(name: str, tools: Collection[str]) -> str:
    """Return why the daemon does not offer a tool, and what to do."""
    if name in registry.TOOLS:
        if _is_for_boxes(name):
            return f"The tool {name!r} {_NEEDS_BOX}"
        return (
            f"This daemon does not offer the tool {name!r}: start it with --tool {name}, or with its options, "
            f"--tool '{name}={{\"option\": ...}}'."
        )
    return f"Unknown tool {name!r:.100}.{meant(name, tools)} Tools: {', '.join(tools)}."


def _is_for_boxes(name: str) -> bool:
    try:
        return getattr(registry.TOOLS.get(name), "needs_box", False)
    except UserError:  # it does not import, which the start with --tool explains
        return False


def _named(spec: str) -> list[Tool]:
    """Load the tools of a spec. Raises `UserError`."""
    name, has_options, rest = spec.partition("={")
    if not has_options and (registered := spec.partition("=")[0]) != spec and registered in registry.TOOLS:
        raise UserError(
            f"The options of --tool {spec} are not a JSON object: write --tool '{registered}={{\"option\": ...}}'."
        )
    try:
        options = json.loads("{" + rest) if has_options else {}
    except json.JSONDecodeError as error:
        raise UserError(f"The options of --tool {name} are not a JSON object: {error}.") from error
    if ":" not in name and name not in registry.TOOLS:
        offered = sorted(each for each in registry.TOOLS if not _is_for_boxes(each))
        raise UserError(
            f"There is no tool {name!r}.{nearest(name, offered)} Set --tool to one of: {', '.join(offered)}. For a "
            "tool of your own write 'file.py:name' or 'package.module:name'."
        )
    tools = registry.load_all(name, **options)
    if any(tool.needs_box for tool in tools):
        raise UserError(f"--tool {name} {_NEEDS_BOX}")
    if "sandbox" in options and any(isinstance(tool, CodeInterpreter) for tool in tools):
        raise UserError(
            f"--tool {name} uses the sandbox of this daemon: remove its option 'sandbox', and choose the level with "
            "--isolation."
        )
    return tools


def _registered(taken: Collection[str]) -> list[Tool]:
    """Return registered tools that need no options, reach nothing of this host, and have a schema and a free name."""
    tools: dict[str, Tool] = {}
    for name in registry.TOOLS:
        try:
            loaded = Toolset(registry.load_all(name)).tools
        except UserError as error:
            _logger.debug("Not offered: %s With options: --tool '%s={...}'.", error, name)
        else:
            free = {each: tool for each, tool in loaded.items() if each not in taken and each not in tools}
            tools |= {each: tool for each, tool in free.items() if not (tool.by_name_only or tool.needs_box)}
    return list(tools.values())
