"""`McpServer`: offers the tools of an MCP server as tools of a task."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from agentloop.errors import ToolError, UserError, nearest
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.mcp.content import content_of
from agentloop.tools.mcp.http import HttpTransport
from agentloop.tools.mcp.protocol import Client, McpError, Transport
from agentloop.tools.mcp.stdio import StdioTransport
from agentloop.tools.schema import SchemaArguments


class McpServer:
    """Source of the tools of an MCP server.

    `command`, a list or a line as in a shell, starts the server; `url` is the address of a running one. `env` and
    `folder` are the environment and working directory of the command, which inherits only the variables that programs
    need to run. `headers` are sent to the URL. `include` names the tools to use (default: all), and `prefix` goes
    before their names. With `stateful` (default) each trajectory has its own session, and its own process of the
    command; otherwise all trajectories share one. `timeout` is the maximum seconds of one call. Raises `UserError` for
    settings that contradict each other.
    """

    needs = "command or url"
    """Required options, for `agentloop tools list`."""

    def __init__(
        self,
        command: str | Sequence[str] | None = None,
        *,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        folder: str | None = None,
        headers: Mapping[str, str] | None = None,
        include: Sequence[str] | None = None,
        prefix: str = "",
        stateful: bool = True,
        timeout: float = 60.0,
    ) -> None:
        if (command is None) == (url is None):
            raise UserError("Set either command or url of an MCP server, and not both.")
        self._command = shlex.split(command) if isinstance(command, str) else list(command or ())
        if url is None and not self._command:
            raise UserError("The command of an MCP server is empty: set the command line that starts it.")
        for header, value in (headers or {}).items():
            if not f"{header}{value}".isascii():  # the value may be a secret
                raise UserError(f"The header {header!r} of an MCP server has characters outside ASCII: remove them.")
        self._url = url
        self._env, self._folder, self._headers = dict(env or {}), folder, dict(headers or {})
        self._include = include
        self._prefix = prefix
        self.stateful = stateful
        self.timeout = timeout
        self._open: dict[str, _Shared] = {}

    @property
    def name(self) -> str:
        """URL or command line, for messages."""
        return self._url or shlex.join(self._command)

    def tools(self) -> list[Tool]:
        """List the tools of the server in a separate session. Raises `UserError` if that fails."""
        try:
            listed = _run(self._list())
        except (McpError, TimeoutError) as error:
            reason = str(error) or f"no answer in {self.timeout:g} s"
            raise UserError(f"The MCP server {self.name} is not usable: {reason}.") from error
        known = {tool["name"]: tool for tool in listed}
        tasks_only = [name for name, tool in known.items() if _requires_task(tool)]
        for name in tasks_only:
            if name in (self._include or ()):
                raise UserError(
                    f"The tool {name!r} of the MCP server {self.name} runs only as a task (execution.taskSupport is "
                    "required), which agentloop does not support. Remove it from include."
                )
            del known[name]
        for name in self._include or ():
            if name not in known:
                raise UserError(
                    f"The MCP server {self.name} has no tool {name!r}.{nearest(name, known)} Its tools: "
                    f"{', '.join(known) or 'none'}."
                )
        return [McpTool(self, known[name], self._prefix) for name in self._include or known]

    async def _list(self) -> list[dict[str, Any]]:
        async with asyncio.timeout(self.timeout):
            client = Client(self._transport())
            try:
                await client.open()
                return await client.list_tools()
            finally:
                await client.close()

    async def acquire(self, trajectory_id: str) -> None:
        """Open the session that the tools of a trajectory share, until `release`. Raises `ToolError`."""
        self._open.setdefault(self._key(trajectory_id), _Shared()).users += 1
        try:
            await self.session(trajectory_id)
        except BaseException:
            await self.release(trajectory_id)
            raise

    async def session(self, trajectory_id: str) -> Client:
        """Return the session of a trajectory that acquired it. Raises `ToolError`.

        If all trajectories share a session, a new one replaces it after the server has ended it. A trajectory's own
        session is not replaced, because its state is gone.
        """
        shared = self._open[self._key(trajectory_id)]
        async with shared.lock:
            if shared.client is not None and shared.client.is_lost and not self.stateful:
                lost, shared.client = shared.client, None
                await lost.close()
            if shared.client is None:
                client = Client(self._transport())
                try:
                    await client.open()
                except BaseException as error:
                    await client.close()
                    if isinstance(error, McpError):
                        raise ToolError(f"The tool server is not usable: {error}.") from error
                    raise
                shared.client = client
            return shared.client

    async def release(self, trajectory_id: str) -> None:
        """Release the session. The last user closes it."""
        key = self._key(trajectory_id)
        shared = self._open[key]
        shared.users -= 1
        if shared.users == 0:
            del self._open[key]
            if shared.client is not None:
                await shared.client.close()

    def _key(self, trajectory_id: str) -> str:
        return trajectory_id if self.stateful else ""

    def _transport(self) -> Transport:
        if self._url is not None:
            return HttpTransport(self._url, self._headers, self.timeout)
        return StdioTransport(self._command, self._env, self._folder)


class _Shared:
    """Session that several tools use."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.users = 0
        self.lock = asyncio.Lock()


class McpTool(Tool):
    """One tool of a server, with the schema that the server lists."""

    def __init__(self, server: McpServer, listed: Mapping[str, Any], prefix: str) -> None:
        self._server = server
        self._remote_name = listed["name"]
        self.name = prefix + self._remote_name
        self.description = str(listed.get("description") or listed.get("title") or "")
        self.arguments = SchemaArguments(
            listed.get("inputSchema") or {},
            what=f"the tool {self._remote_name!r} of the MCP server {server.name}",
            fix="Correct the server, or leave the tool out: name the others in its option include.",
        )
        self.timeout = server.timeout
        self._holds = False

    async def start(self) -> None:
        """Open the session if all trajectories share one. It stays open until `shutdown`."""
        if self._server.stateful or self._holds:
            return
        try:
            await self._server.acquire("")
        except ToolError as error:
            raise UserError(f"The MCP server {self._server.name} is not usable: {error}") from error
        self._holds = True

    async def shutdown(self) -> None:
        if self._holds:
            self._holds = False
            await self._server.release("")

    async def open(self, ctx: ToolContext) -> None:
        await self._server.acquire(ctx.trajectory_id)

    async def close(self, ctx: ToolContext) -> None:
        await self._server.release(ctx.trajectory_id)

    async def call(self, ctx: ToolContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]
        client = await self._server.session(ctx.trajectory_id)
        try:
            result = await client.call_tool(self._remote_name, arguments)
        except McpError as error:
            raise ToolError(f"The tool server failed: {error}.") from error
        return ToolResult(content_of(result), is_error=bool(result.get("isError")))


def _requires_task(listed: Mapping[str, Any]) -> bool:
    """Return whether a call of the tool needs a task (specification of 2025-11-25); a plain call is refused."""
    execution = listed.get("execution")
    return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"


def _run(coroutine: Any) -> Any:
    """Run a coroutine from synchronous code, even if an event loop is running."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
