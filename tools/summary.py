"""Summarize registered tools without creating them, because some require options such as the path of an index."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from agentloop.tools import docstrings, registry
from agentloop.tools.base import Tool
from agentloop.tools.schema import Arguments
from agentloop.tools.toolset import arguments_of


@dataclass(slots=True, frozen=True)
class Summary:
    """One line of `agentloop tools list`."""

    needs: str
    """Required options, such as "source"; empty if there are none."""
    parameters: tuple[str, ...]
    """Parameters that the model may pass; empty for a source of several tools."""
    description: str


def summary(name: str) -> Summary:
    """Return the summary of a registered tool. Raises `UserError` if it does not import or no schema describes it."""
    found = registry.TOOLS.get(name)
    if isinstance(found, type) and issubclass(found, Tool | registry.ToolSource):
        return Summary(_needs(found), _parameters_of_class(found), _description(found))
    made = registry.as_tool(name, found)
    if not isinstance(made, Tool):
        return Summary("", (), " ".join(docstrings.split(type(made).__doc__)[0].split()))
    return Summary("", tuple(arguments_of(made).schema["properties"]), made.description)


def _needs(found: type) -> str:
    """Return the class's own `needs`, or the constructor parameters without a default."""
    parameters = inspect.signature(found).parameters.values()
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [each.name for each in parameters if each.default is each.empty and each.kind not in open_ended]
    return getattr(found, "needs", "") or ", ".join(required)


def _parameters_of_class(found: type) -> tuple[str, ...]:
    if not issubclass(found, Tool):
        return ()
    arguments: Any = found.arguments or Arguments(found.call, skip=2, docstring=found.__doc__)
    return tuple(arguments.schema["properties"])


def _description(found: type) -> str:
    text = found.description if issubclass(found, Tool) else docstrings.split(found.__doc__)[0].partition("\n\n")[0]
    return " ".join(text.split())
