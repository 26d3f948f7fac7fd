"""`Connection`: one session with an OpenEnv server over its websocket `/ws`.

    {"type": "reset", "data": {"seed": 1}}    ->  {"type": "observation",
    {"type": "step", "data": {<action>}}            "data": {"observation": {...}, "reward": 1.0, "done": false}}
    {"type": "close"}                         ->  {"type": "error", "data": {"message": ..., "code": ...}}

This module does not use OpenEnv's client: the frames are the same in all versions, but its Python API is not.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentloop.errors import EnvError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_MAX_FRAME = 64 * 1024 * 1024
_MAX_SHOWN = 500


class RefusedAction(Exception):
    """The server refused an invalid action of the model (VALIDATION_ERROR). The session continues."""


@dataclass(slots=True, frozen=True)
class Reply:
    """Answer of the server to a reset or a step."""

    observation: Mapping[str, Any]
    reward: float | None
    done: bool


class Connection:
    """Session for which the server creates an environment. All failures raise `EnvError`."""

    def __init__(self, url: str, *, timeout: float) -> None:
        """Prepare a session with the websocket at `url`. `timeout` is the maximum seconds of one answer."""
        self._url = url
        self._timeout = timeout
        self._socket: ClientConnection | None = None

    async def open(self) -> None:
        """Connect. Raises `EnvError`."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        try:
            self._socket = await connect(self._url, open_timeout=self._timeout, max_size=_MAX_FRAME, close_timeout=2)
        except (OSError, TimeoutError, WebSocketException) as error:
            raise EnvError(f"cannot connect to {self._url}: {type(error).__name__}: {error}") from error

    async def reset(self, arguments: Mapping[str, Any]) -> Reply:
        """Reset the environment. Raises `EnvError`."""
        return await self._ask("reset", arguments)

    async def step(self, action: Mapping[str, Any]) -> Reply:
        """Make a step. Raises `EnvError`, and `RefusedAction` for an invalid action."""
        return await self._ask("step", action)

    async def close(self) -> None:
        """End the session, so that the server frees the environment at once."""
        from websockets.exceptions import WebSocketException

        socket, self._socket = self._socket, None
        if socket is None:
            return
        with suppress(WebSocketException):  # the server may have closed it already
            await socket.send(json.dumps({"type": "close"}))
        await socket.close()

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Reply:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        if self._socket is None:
            raise EnvError("the session with the server is lost: an earlier request got no answer")
        socket, self._socket = (
            self._socket,
            None,
        )  # unusable until the answer arrives, because a late answer would count for the next request
        try:
            async with asyncio.timeout(self._timeout):
                with suppress(ConnectionClosed):  # an answer before the close has the reason
                    await socket.send(json.dumps({"type": kind, "data": dict(data)}))
                frame = await socket.recv()
        except TimeoutError as error:
            raise EnvError(f"the server took longer than {self._timeout:g} s to {kind}") from error
        except WebSocketException as error:
            raise EnvError(f"the server ended the session: {error}") from error
        else:
            self._socket = socket
        finally:
            if self._socket is None:
                socket.transport.abort()
        return read_reply(frame, kind)


def read_reply(frame: str | bytes, kind: str) -> Reply:
    """Parse the frame that answers a reset or a step. Raises `EnvError` and `RefusedAction`."""
    try:
        message = json.loads(frame)
    except ValueError as error:
        raise EnvError(f"the server answered with a frame that is not JSON: {_shown(frame)}") from error
    data = message.get("data") if isinstance(message, dict) else None
    if not isinstance(data, dict):
        raise EnvError(f"the server answered with a frame without data: {_shown(message)}")
    if message.get("type") == "error":
        if kind == "step" and data.get("code") == "VALIDATION_ERROR":
            raise RefusedAction(_problems(data))
        raise EnvError(f"the server reports {data.get('code')}: {_shown(data.get('message'))}")
    if message.get("type") != "observation" or not isinstance(data.get("observation"), dict):
        raise EnvError(f"the server answered {kind} with {_shown(message)}")
    return Reply(data["observation"], _reward(data.get("reward")), data.get("done") is True)


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, bool | int | float) or not math.isfinite(value):
        raise EnvError(f"the server returned an invalid reward: {_shown(value)}")
    return float(value)


def _problems(data: Mapping[str, Any]) -> str:
    """Return pydantic's problems, one per line, if the server sends them, else its message."""
    errors = data.get("errors")
    if not isinstance(errors, list) or not all(isinstance(error, dict) for error in errors):
        return _shown(data.get("message"))
    lines = [f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg')}" for error in errors]
    return "\n".join(lines)[:_MAX_SHOWN]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
