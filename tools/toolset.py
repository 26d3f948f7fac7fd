"""`Toolset`: the tools of a task, which all trajectories share."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from agentloop.errors import UserError, blaming, named, shown
from agentloop.tools.base import ArgumentSchema, Tool
from agentloop.tools.function import FunctionTool
from agentloop.tools.schema import Arguments
from agentloop.tools.sessions import ToolSessions
from agentloop.tools.time_limit import SHUTDOWN_SECONDS, within
from agentloop.types.messages import Message

_logger = logging.getLogger(__name__)


class Toolset:
    """Tools by name, with their schemas and validators, which are built once.

    Raises `UserError` if two tools have the same name, a timeout is not a number above 0, or no schema describes a
    signature.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools: dict[str, Tool] = {}
        for tool in tools:
            if not isinstance(tool, Tool):
                raise UserError(
                    f"A Toolset has tools, got {shown(tool)}. Create the class, as in Toolset([Weather()]), or "
                    "decorate the function with @tool."
                )
            if tool.name in self.tools:
                raise UserError(
                    f"Two tools have the name {tool.name!r}: rename one of them (`name = ...`, or the option `prefix` "
                    "of an MCP server)."
                )
            _check_timeout(tool)
            self.tools[tool.name] = tool
        self._arguments = {name: arguments_of(tool) for name, tool in self.tools.items()}
        self.schemas: list[dict[str, Any]] = [
            {
                "type": "function",
                "function": {"name": name, "description": tool.description, "parameters": self._arguments[name].schema},
            }
            for name, tool in self.tools.items()
        ]
        """Schemas in the format of OpenAI-style APIs and chat templates. Every read returns the same list."""
        self._selected: dict[tuple[str, ...], Toolset] = {}

    def sessions(
        self,
        trajectory_id: str,
        task: Mapping[str, Any],
        seed: int,
        images: Sequence[Any] = (),
        env: Any = None,
        shared_state: dict[str, Any] | None = None,
        messages: Sequence[Message] = (),
    ) -> ToolSessions:
        """Return the tools of one trajectory. They see what it later appends to `images` and `messages`."""
        return ToolSessions(self.tools, self._arguments, trajectory_id, task, seed, images, env, shared_state, messages)

    def selected(self, names: Sequence[str]) -> Toolset:
        """Return the tools with these names, without names that are unknown. The same names give the same object.

        Renderers identify tools by the identity of their schemas. Only this toolset starts and releases the tools.
        """
        known = tuple(name for name in dict.fromkeys(names) if name in self.tools)
        if known not in self._selected:
            self._selected[known] = Toolset([self.tools[name] for name in known])
        return self._selected[known]

    async def start(self) -> None:
        """Start all tools. A second call does nothing. Raises `UserError` if one cannot work on this machine."""
        try:
            for name, tool in self.tools.items():
                with blaming(f"The tool {name!r} cannot start"):
                    await tool.start()
        except BaseException:
            await self.shutdown()
            raise

    async def shutdown(self) -> None:
        """Release what the tools share, each tool within `SHUTDOWN_SECONDS`. Failures are logged."""
        for name, tool in self.tools.items():
            try:
                await within(SHUTDOWN_SECONDS, tool.shutdown())
            except Exception:
                _logger.exception("The tool %r failed to shut down.", name)


def _check_timeout(tool: Tool) -> None:
    seconds: Any = tool.timeout
    # Infinity is valid: the tools of some environments leave the time to the environment.
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UserError(f"timeout of the tool {tool.name!r} must be a number of seconds above 0, got {seconds!r}.")


def arguments_of(tool: Tool) -> ArgumentSchema:
    """Return the argument schema of a tool: its own, or one from the signature of its `call`."""
    if tool.arguments is not None:
        return tool.arguments
    if isinstance(tool, FunctionTool):
        return Arguments(tool.function, skip=int(tool.takes_context))
    if type(tool).call is Tool.call:
        raise UserError(f"The tool {tool.name!r} has no method call(self, ctx, ...): define it.")
    first = next(iter(inspect.signature(tool.call).parameters.values()), None)
    if first is None or (first.annotation is not first.empty and "ToolContext" not in str(first.annotation)):
        parameters = "" if first is None else f", {first.name}, ..."
        raise UserError(
            f"{named(tool.call)} has no parameter for the ToolContext, which comes first. Write it as "
            f"call(self, ctx{parameters})."
        )
    return Arguments(tool.call, skip=1, docstring=type(tool).__doc__)
