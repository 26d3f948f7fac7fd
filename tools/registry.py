"""Find tools: by the name that a package registered (entry point group `agentloop.tools`), or by where they are."""

from __future__ import annotations

import copy
import inspect
from importlib.metadata import EntryPoint
from typing import Any, Protocol, runtime_checkable

from agentloop.errors import UserError, blaming, nearest, raised
from agentloop.registry.named_objects import load_object, registered
from agentloop.tools.base import Tool
from agentloop.tools.function import tool
from agentloop.tools.rate_limits import SharedLimit

GROUP = "agentloop.tools"


def available() -> dict[str, EntryPoint]:
    """The registered tools, by name; nothing of them is imported."""
    return registered(GROUP)


@runtime_checkable
class ToolSource(Protocol):
    """Something that brings several tools, such as a server of them."""

    def tools(self) -> list[Tool]:
        """Raises `UserError` where they cannot be had."""
        ...


def load(spec: str, **options: Any) -> Tool:
    """The tool that `spec` names: registered, `package.module:name`, or `path/to/file.py:name`.

    It may be a `Tool` class, which is made with `options`, a `Tool`, or a function, which becomes one. Raises
    `UserError`.
    """
    tools = load_all(spec, **options)
    if len(tools) != 1:
        raise UserError(f"{spec!r} brings {len(tools)} tools ({', '.join(tool.name for tool in tools)}): include one.")
    return tools[0]


def load_all(
    spec: str, *, max_concurrency: int | None = None, calls_per_second: float | None = None, **options: Any
) -> list[Tool]:
    """As `load`, and also the tools of a `ToolSource`.

    `max_concurrency` and `calls_per_second` bound the calls of each tool over all processes of the machine.
    """
    found = _make(spec, load_object(spec, "tool") if ":" in spec else definition(spec), options)
    tools = found.tools() if isinstance(found, ToolSource) else [found]
    if max_concurrency is None and calls_per_second is None:
        return tools
    tools = [copy.copy(each) for each in tools]  # the tool of a module may be used elsewhere without limits
    for each in tools:
        each.limit = SharedLimit(each.name, max_concurrency=max_concurrency, calls_per_second=calls_per_second)
    return tools


def definition(name: str) -> Any:
    """What a package registered under the name: a class, a `Tool` or a function. Raises `UserError`."""
    tools = available()
    if name not in tools:
        raise UserError(
            f"There is no tool {name!r}.{nearest(name, tools)} Registered: {', '.join(tools) or 'none'}. Your own is "
            "named by its place: 'package.module:name' or 'path/to/file.py:name'."
        )
    try:
        return tools[name].load()
    except Exception as error:
        raise UserError(
            f"The tool {name!r} of the package {package_of(tools[name])!r} fails to import: "
            f"{raised(error)}. Update or remove the package."
        ) from error


def package_of(entry: EntryPoint) -> str:
    """The distribution that registered a tool."""
    return entry.dist.name if entry.dist is not None else "unknown"


def _make(spec: str, found: Any, options: dict[str, Any]) -> Tool | ToolSource:
    if isinstance(found, type) and (issubclass(found, Tool) or issubclass(found, ToolSource)):
        try:
            inspect.signature(found).bind(**options)
        except TypeError as error:
            known = list(inspect.signature(found).parameters)
            raise UserError(
                f"The tool {spec!r} cannot be made with these options: {error}. It takes: {', '.join(known) or 'none'}."
            ) from error
        with blaming(f"The tool {spec!r} cannot be made"):
            return found(**options)
    made = as_tool(spec, found)
    if options:
        raise UserError(f"The tool {spec!r} is already made, so that it takes no options: got {', '.join(options)}.")
    return made


def as_tool(spec: str, found: Any) -> Tool | ToolSource:
    """What `spec` names and is no class of tools, as a tool. Raises `UserError` where it is none."""
    if isinstance(found, Tool | ToolSource):
        return found
    if not inspect.isfunction(found):
        raise UserError(f"{spec!r} is {type(found).__name__}, not a Tool class, a Tool or a function.")
    return tool(found)
