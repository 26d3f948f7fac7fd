"""`agentloop tools`: the registry, and one call from the shell."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agentloop.errors import UserError
from agentloop.messages import ToolCall, text_of
from agentloop.tools import registry
from agentloop.tools.base import ToolResult
from agentloop.tools.toolset import Toolset, arguments_of

app = typer.Typer(help="List the tools, or call one.", no_args_is_help=True, add_completion=False)


@app.command("list")
def list_tools() -> None:
    """The registered tools."""
    table = Table("name", "parameters", "package", "description")
    for name, entry in registry.available().items():
        try:
            tool = registry.load(name)
            parameters, description = ", ".join(arguments_of(tool).schema["properties"]), tool.description
        except UserError as error:
            parameters, description = "", f"[red]{error}[/red]"
        table.add_row(name, parameters, registry.package_of(entry), description)
    Console().print(table)


@app.command("call")
def call_tool(
    name: Annotated[str, typer.Argument(help="A registered name, 'package.module:name' or 'path/to/file.py:name'.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its arguments.")] = None,
    as_json: Annotated[str | None, typer.Option("--json", help="Its arguments as a JSON object.")] = None,
) -> None:
    """Call a tool once and print its result. Exits with 1 where that is an error."""
    toolset = Toolset([registry.load(name)])
    (schema,) = toolset.schemas
    given = _read_json(as_json) | _read_pairs(arguments or [], schema["function"]["parameters"]["properties"])
    result = asyncio.run(_call(toolset, ToolCall(schema["function"]["name"], given, "call_0")))
    print(text_of(result.content))
    raise typer.Exit(int(result.is_error))


async def _call(toolset: Toolset, call: ToolCall) -> ToolResult:
    await toolset.start()
    sessions = toolset.sessions("shell", task={}, seed=0)
    try:
        return await sessions.call(call, time.monotonic() + toolset.tools[call.name].timeout)
    finally:
        await sessions.close()
        await toolset.shutdown()


def _read_json(text: str | None) -> dict[str, Any]:
    try:
        given = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise UserError(f"--json is no JSON: {error}.") from error
    if not isinstance(given, dict):
        raise UserError("--json must be an object: '{\"key\": value}'.")
    return given


def _read_pairs(pairs: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    """Values are JSON where that can be read and the parameter is no string."""
    given = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UserError(f"The argument {pair!r} must be written as key=value.")
        given[key] = value if properties.get(key, {}).get("type") == "string" else _json_or_text(value)
    return given


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
