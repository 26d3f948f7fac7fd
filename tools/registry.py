"""Load tools by name: those that packages registered (entry-point group `agentloop.tools`), and your own."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from agentloop.errors import UserError, blaming, nearest
from agentloop.registry.options import as_annotated, check_call
from agentloop.registry.registry import Registry
from agentloop.tools.base import Tool
from agentloop.tools.function import tool
from agentloop.tools.rate_limits import SharedLimit

GROUP = "agentloop.tools"

TOOLS: Registry[Any] = Registry("tool", "env.tools", group=GROUP)
"""Classes of tools, tools and functions."""


@runtime_checkable
class ToolSource(Protocol):
    """Several tools, such as those of a server."""

    def tools(self) -> list[Tool]:
        """Return the tools. Raises `UserError` if the source does not provide them."""
        ...


def load(spec: str, **options: Any) -> Tool:
    """Return the tool of a registered name, 'package.module:name' or 'path/to/file.py:name'.

    The name refers to a `Tool` class, which is created with `options`, to a `Tool`, or to a function, which becomes a
    tool. Raises `UserError`, also for an option of a wrong type.
    """
    return chosen(load_all(spec, **options), None, spec=spec)


def chosen(tools: Sequence[Tool], name: str | None, *, spec: str) -> Tool:
    """Return the tool of a spec that has this name, or the only one. Raises `UserError`."""
    known = {each.name: each for each in tools}
    if not known:
        raise UserError(f"{spec!r} has no tools, so there is none to call: name another tool.")
    if name is None and len(tools) == 1:
        return tools[0]
    if name is None:
        raise UserError(f"{spec!r} has {len(tools)} tools: choose one with --tool, or use load_all. {_listed(known)}")
    if name not in known:
        raise UserError(f"{spec!r} has no tool {name!r}.{nearest(name, known)} {_listed(known)}")
    return known[name]


def _listed(names: Iterable[str]) -> str:
    return f"Its tools: {', '.join(names)}."


def load_all(
    spec: str, *, max_concurrency: int | None = None, calls_per_second: float | None = None, **options: Any
) -> list[Tool]:
    """Return the tool of a spec, or all tools of a `ToolSource`.

    `max_concurrency` and `calls_per_second` limit the calls of each tool over all processes of the machine. Raises
    `UserError`.
    """
    found = _make(spec, TOOLS.get(spec), options)
    tools = found.tools() if isinstance(found, ToolSource) else [found]
    if max_concurrency is None and calls_per_second is None:
        return tools
    tools = [copy.copy(each) for each in tools]  # other code may use the module's tool without limits
    for each in tools:
        each.limit = SharedLimit(each.name, max_concurrency=max_concurrency, calls_per_second=calls_per_second)
    return tools


def _make(spec: str, found: Any, options: dict[str, Any]) -> Tool | ToolSource:
    if isinstance(found, type) and (issubclass(found, Tool) or issubclass(found, ToolSource)):
        check_call(found, options, of=f"tool {spec!r}", call=f"{found.__name__}(**options)")
        annotated = as_annotated(found, options, of=f"tool {spec!r}")
        with blaming(f"The tool {spec!r} cannot be created"):
            return found(**annotated)
    made = as_tool(spec, found)
    if options:
        raise UserError(
            f"The tool {spec!r} is not a class, so it takes no options: got {', '.join(options)}. Remove them."
        )
    return made


def as_tool(spec: str, found: Any) -> Tool | ToolSource:
    """Return a tool, a source of tools, or a function as a tool. Raises `UserError` for anything else."""
    if isinstance(found, Tool | ToolSource):
        return found
    if not inspect.isfunction(found):
        raise UserError(
            f"{spec!r} is {type(found).__name__}, not a Tool class, a Tool or a function: name one of these."
        )
    return tool(found)
