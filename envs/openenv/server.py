"""What an OpenEnv server says about itself, asked once: the schema of its actions, or the tools that it offers.

Environments of tools (OpenEnv's RFC 003) take two actions: list_tools, which needs no reset, and call_tool. Their
tools are tools of the model here, each under its own name and schema.
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
from agentloop.tools.json_schema import SchemaArguments

_SECONDS = 10.0
_WEBSOCKET = {"http": "ws", "https": "wss"}
_CACHE: dict[str, Server] = {}


@dataclass(frozen=True, eq=False)
class Server:
    """What all episodes on one server share."""

    websocket: str
    """The URL of its sessions."""
    arguments: SchemaArguments
    """Of an action."""
    acts: tuple[Act, ...]
    """What the model may call."""
    has_tools: bool
    """Its actions are calls of tools."""


class ToolAct(Act):
    """A tool that the environment offers; to call it is a move."""

    def __init__(self, listed: Mapping[str, Any]) -> None:
        self.name = str(listed["name"])
        arguments = SchemaArguments(listed.get("input_schema") or {}, what=f"the tool {self.name!r}")
        super().__init__(arguments, str(listed.get("description") or ""))

    async def call(self, ctx: ToolContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]
        env: ActingEnv = ctx.env
        return await env.act({"type": "call_tool", "tool_name": self.name, "arguments": arguments})


def server_at(url: str) -> Server:
    """The server at `url` (http or https). Raises `UserError` where there is none that answers as one."""
    url = url.rstrip("/")
    if url not in _CACHE:
        parts = urlsplit(url)
        if parts.scheme not in _WEBSOCKET or not parts.netloc:
            raise UserError(f"The OpenEnv server {url!r} must be given as http://host:port.")
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
            f"There is no OpenEnv server at {url}: its /schema does not say what an action is "
            f"({type(error).__name__}: {error}). Start the server, and give the address under which it serves /ws."
        ) from error
    properties.pop("metadata", None)  # of the protocol, not of the game
    return {**schema, "properties": properties}


def _takes_calls(schema: Mapping[str, Any]) -> bool:
    """Whether actions are list_tools and call_tool: either has a constant type. The schema shows one of them."""
    kind = schema["properties"].get("type")
    return isinstance(kind, Mapping) and kind.get("const") in ("call_tool", "list_tools")


def _tools(websocket: str) -> tuple[Act, ...]:
    """The tools of the environment, which a session of its own is asked for."""
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
            f"The OpenEnv server at {websocket} does not list its tools: {type(error).__name__}: {error}."
        ) from error
    if not tools:
        raise UserError(f"The OpenEnv server at {websocket} takes calls of tools and has none.")
    return tools
