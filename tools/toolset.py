"""`Toolset`: the tools of a task, shared by all trajectories; `ToolSessions`: their life in one of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from agentloop.errors import UserError, blaming
from agentloop.tools.base import ArgumentSchema, Tool
from agentloop.tools.function import FunctionTool
from agentloop.tools.schema import Arguments
from agentloop.tools.sessions import ToolSessions

_logger = logging.getLogger(__name__)


class Toolset:
    """Tools under their names, with their schemas and validators, built once.

    Raises `UserError` where two have one name, or where a signature cannot be shown to a model.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self.tools:
                raise UserError(f"Two tools have the name {tool.name!r}: give one of them another (`name = ...`).")
            self.tools[tool.name] = tool
        self._arguments = {name: arguments_of(tool) for name, tool in self.tools.items()}
        self.schemas: list[dict[str, Any]] = [
            {
                "type": "function",
                "function": {"name": name, "description": tool.description, "parameters": self._arguments[name].schema},
            }
            for name, tool in self.tools.items()
        ]
        """As OpenAI-style APIs and chat templates take them; always the same list."""

    def sessions(
        self, trajectory_id: str, task: Mapping[str, Any], seed: int, images: Sequence[Any] = (), env: Any = None
    ) -> ToolSessions:
        """The tools of one trajectory. `images` is kept, not copied: what the trajectory adds to it, tools see."""
        return ToolSessions(self.tools, self._arguments, trajectory_id, task, seed, images, env)

    async def start(self) -> None:
        """Make all tools ready; again it does nothing. Raises `UserError` where one cannot work here."""
        try:
            for name, tool in self.tools.items():
                with blaming(f"The tool {name!r} cannot start"):
                    await tool.start()
        except BaseException:
            await self.shutdown()
            raise

    async def shutdown(self) -> None:
        """Release what the tools share. A tool that fails to is logged."""
        for name, tool in self.tools.items():
            try:
                await tool.shutdown()
            except Exception:
                _logger.exception("The tool %r failed to shut down.", name)


def arguments_of(tool: Tool) -> ArgumentSchema:
    """What a tool takes: as it says, or from the signature of its `call`."""
    if tool.arguments is not None:
        return tool.arguments
    if isinstance(tool, FunctionTool):
        return Arguments(tool.function, skip=int(tool.takes_context))
    return Arguments(tool.call, skip=1, docstring=type(tool).__doc__)
