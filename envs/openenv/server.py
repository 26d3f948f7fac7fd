"""`Server`: the action schema or the tools of an OpenEnv server, read once.

Tool environments (OpenEnv's RFC 003) have two actions: list_tools, which needs no reset, and call_tool. The model sees
each of their tools under its own name and schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from agentloop.envs.acting import Act, ActingEnv
from agentloop.envs.openenv.connection import RefusedAction, read_reply
from agentloop.errors import EnvError, UserError
from agentloop.tools.base import ToolContext, ToolResult
from agentloop.tools.schema import SchemaArguments

_SECONDS = 10.0
_WEBSOCKET = {"http": "ws", "https": "wss"}
_CACHE: dict[str, Server] = {}


@dataclass(frozen=True, eq=False)
class Server:
    """Properties of a server, which all its episodes share."""

    websocket: str
    """URL of the websocket for sessions."""
    arguments: SchemaArguments
    """Arguments of an action."""
    acts: tuple[Act, ...]
    """Tools that the model may call."""
    has_tools: bool
    """Whether the server's actions are tool calls."""


class ToolAct(Act):
    """Tool that the environment offers. Calling it is a move."""

    def __init__(self, listed: Mapping[str, Any]) -> None:
        self.name = str(listed["name"])
        arguments = SchemaArguments(listed.get("input_schema") or {}, what=f"the tool {self.name!r}")
        super().__init__(arguments, str(listed.get("description") or ""))

    async def call(self, ctx: ToolContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]
        env: ActingEnv = ctx.env
        return await env.act({"type": "call_tool", "tool_name": self.name, "arguments": arguments})


def server_at(url: str) -> Server:
    """Return the server at `url` (http or https). Raises `UserError` if it is not an OpenEnv server."""
    url = url.rstrip("/")
    if url not in _CACHE:
        parts = urlsplit(url)
        if parts.scheme not in _WEBSOCKET or not parts.netloc:
            raise UserError(f"Invalid address {url!r} of an OpenEnv server: use http://host:port.")
        arguments = SchemaArguments(_action_schema(url), what=f"the actions of the OpenEnv server {url}")
        websocket = urlunsplit((_WEBSOCKET[parts.scheme], parts.netloc, f"{parts.path}/ws", "", ""))
        has_tools = _takes_calls(arguments.schema)
        acts = _tools(websocket) if has_tools else (Act(arguments),)
        _CACHE[url] = Server(websocket, arguments, acts, has_tools)
    return _CACHE[url]


def _action_schema(url: str) -> dict[str, Any]:
    try:
        response = httpx.get(f"{url}/schema", timeout=_SECONDS, follow_redirects=True)
        response.raise_for_status()
        schema = response.json()["action"]
        properties = dict(schema["properties"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"There is no OpenEnv server at {url}: its /schema has no action ({type(error).__name__}: {error}). Start "
            "the server, and use the address under which it serves /ws."
        ) from error
    properties.pop("metadata", None)  # part of the protocol, not of the game
    return {**schema, "properties": properties}


def _takes_calls(schema: Mapping[str, Any]) -> bool:
    """Return whether the actions are list_tools and call_tool. The schema has one of them, with a constant type."""
    kind = schema["properties"].get("type")
    return isinstance(kind, Mapping) and kind.get("const") in ("call_tool", "list_tools")


def _tools(websocket: str) -> tuple[Act, ...]:
    """List the tools of the environment in a separate session."""
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect

    try:
        with connect(websocket, open_timeout=_SECONDS) as session:
            session.send(json.dumps({"type": "step", "data": {"type": "list_tools"}}))
            reply = read_reply(session.recv(timeout=_SECONDS), "step")
            session.send(json.dumps({"type": "close"}))
        tools = tuple(ToolAct(listed) for listed in reply.observation["tools"])
    except (OSError, WebSocketException, EnvError, RefusedAction, KeyError, TypeError) as error:
        raise UserError(
            f"Cannot list the tools of the OpenEnv server at {websocket}: {type(error).__name__}: {error}."
        ) from error
    if not tools:
        raise UserError(f"The OpenEnv server at {websocket} has no tools, but its actions are tool calls.")
    return tools
