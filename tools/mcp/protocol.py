"""`Client`: a session with an MCP server over any `Transport`. Messages are JSON-RPC 2.0.

https://modelcontextprotocol.io/specification/2025-11-25
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol

from agentloop.errors import AgentLoopError, shown

PROTOCOL_VERSION = "2025-11-25"
_MAX_PAGES = 100

Message = dict[str, Any]


class McpError(AgentLoopError):
    """The server failed, or its answer is not usable."""


class Transport(Protocol):
    """Connection that carries messages to one server and back."""

    is_lost: bool
    """Whether the server has ended the session, so that all further requests fail."""

    async def open(self) -> None:
        """Connect to the server. Raises `McpError` if there is none."""

    async def request(self, message: Message, on_request: Callable[[Message], Message | None]) -> Message:
        """Send a request and wait for its answer. Raises `McpError`.

        `on_request` answers requests that the server sends in the meantime.
        """
        ...

    async def notify(self, message: Message) -> None:
        """Send a message that has no answer."""

    def negotiated(self, version: str) -> None:
        """Adopt the protocol version that both sides agreed on."""

    async def close(self) -> None:
        """Disconnect."""


class Client:
    """Session with one server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._numbers = itertools.count(1)

    @property
    def is_lost(self) -> bool:
        """Whether the server has ended the session, so that all further requests fail."""
        return self._transport.is_lost

    async def open(self) -> None:
        """Connect and initialize the session. Raises `McpError`."""
        await self._transport.open()
        answer = await self._request(
            "initialize",
            {
                "protocolVersion": PROTOCOL_VERSION,
                "capabilities": {},
                "clientInfo": {"name": "agentloop", "version": "0.1.0"},
            },
        )
        self._transport.negotiated(str(answer.get("protocolVersion", PROTOCOL_VERSION)))
        await self._transport.notify({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return `{"name", "description", "inputSchema", ...}` of each tool. Raises `McpError` if one is malformed."""
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._request("tools/list", {"cursor": cursor} if cursor else {})
            tools += _listed(page.get("tools"))
            if not (cursor := page.get("nextCursor")):
                return tools
        raise McpError(f"its list of tools has more than {_MAX_PAGES} pages")

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool and return `{"content": [...], "isError": bool, ...}`."""
        result = await self._request("tools/call", {"name": name, "arguments": arguments})
        content = result.get("content")
        if not isinstance(content, list | None):
            raise McpError(f"the answer to tools/call has the content {shown(content)}, which is not a list")
        return {**result, "content": content or []}

    async def close(self) -> None:
        await self._transport.close()

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}
        answer = await self._transport.request(message, _answer)
        if "error" in answer:
            error = answer["error"]
            text = error.get("message") if isinstance(error, dict) else error
            raise McpError(f"{method} failed: {text}")
        result = answer.get("result")
        if not isinstance(result, dict):
            raise McpError(f"the answer to {method} has no result")
        return result


def _listed(tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, list | None):
        raise McpError(f"the answer to tools/list has {shown(tools)}, which is not a list of tools")
    for tool in tools or ():
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
            raise McpError(f"its list of tools has {shown(tool)}, which is not an object with a name")
        if not isinstance(tool.get("inputSchema"), dict | None):
            raise McpError(f"the inputSchema of its tool {tool['name']!r} is not an object")
    return tools or []


def _answer(message: Message) -> Message | None:
    """Answer a request of the server: accept pings, and refuse all else (sampling, roots, elicitation)."""
    if "method" not in message or "id" not in message:
        return None
    if message["method"] == "ping":
        return {"jsonrpc": "2.0", "id": message["id"], "result": {}}
    error = {"code": -32601, "message": f"{message['method']} is not supported"}
    return {"jsonrpc": "2.0", "id": message["id"], "error": error}
