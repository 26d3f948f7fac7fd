"""What an OpenEnv server says about itself over HTTP, asked once: the schema of its actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from agentloop.envs.acting import Act
from agentloop.errors import UserError
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
    act: Act


def server_at(url: str) -> Server:
    """The server at `url` (http or https). Raises `UserError` where there is none that answers as one."""
    url = url.rstrip("/")
    if url not in _CACHE:
        parts = urlsplit(url)
        if parts.scheme not in _WEBSOCKET or not parts.netloc:
            raise UserError(f"The OpenEnv server {url!r} must be given as http://host:port.")
        arguments = SchemaArguments(_action_schema(url), what=f"the actions of the OpenEnv server {url}")
        websocket = urlunsplit((_WEBSOCKET[parts.scheme], parts.netloc, f"{parts.path}/ws", "", ""))
        _CACHE[url] = Server(websocket, arguments, Act(arguments))
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
