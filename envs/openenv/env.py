"""`OpenEnv`: plays a session with an OpenEnv server as an environment of agentloop.

    env:
      factory: openenv
      options: {url: "http://127.0.0.1:8000"}

The model calls `act(...)` with the fields of the server's actions, or its text becomes one of the fields. If actions
are tool calls, the model calls these tools, and a turn without a call is its answer. `done` becomes COMPLETED, because
the protocol has no truncation. A reward of None means that the move is not scored; it does not count as 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentloop.envs.acting import ActingEnv, ActionMode, Move, with_act
from agentloop.envs.base import Observation
from agentloop.envs.openenv.connection import Connection, RefusedAction
from agentloop.envs.openenv.server import Server, server_at
from agentloop.errors import UserError, nearest
from agentloop.tools.mcp.content import as_content
from agentloop.tools.schema import ArgumentError
from agentloop.types.messages import Content, Message

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset


class OpenEnv(ActingEnv):
    """Episode in its own session. Rows may have `seed` and `reset_options`, which are passed to `reset`.

    Args:
        url: Address of the server: http://host:port.
        actions: "tool" for calls of `act(...)` or of the environment's tools, "text" for turns of plain text.
        text_field: Field of an action that gets the text of a turn. Default: the only required field.
        observation_field: Field of an observation that the model sees. Default: all except `metadata`.
        step_timeout: Seconds within which the server must answer. After that the episode fails.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        url: str,
        actions: ActionMode = "tool",
        text_field: str | None = None,
        observation_field: str | None = None,
        step_timeout: float = 60.0,
        max_invalid_actions: int = 3,
    ) -> None:
        super().__init__(row, toolset=toolset, reward=reward, actions=actions, max_invalid_actions=max_invalid_actions)
        _check_websockets()
        self._server = server_at(url)
        self._observation_field = observation_field
        if actions == "tool":
            self.toolset = with_act(toolset, *self._server.acts)
        else:
            self._text_field = _text_field(self._server, text_field)
        self._connection = Connection(self._server.websocket, timeout=step_timeout)

    async def begin(self) -> Content:
        await self._connection.open()
        reply = await self._connection.reset({"seed": self.seed, **(self.task.get("reset_options") or {})})
        return self._shown(reply.observation)

    async def move(self, arguments: dict[str, Any]) -> Move:
        try:
            reply = await self._connection.step(arguments)
        except RefusedAction as error:
            raise ArgumentError(f"The environment refuses this action:\n{error}") from error
        if self._server.has_tools and "tool_name" in reply.observation:
            content, is_error = _result(reply.observation)
            return Move(content, reply.reward, terminated=reply.done, is_error=is_error)
        return Move(self._shown(reply.observation), reply.reward, terminated=reply.done)

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        if self._actions == "tool" and self._server.has_tools:
            return Observation(), 0.0, True, False
        return await super().step(message)

    def read(self, text: str) -> dict[str, Any]:
        return self._server.arguments.validate({self._text_field: self._text_value(text.strip())})

    async def close(self) -> None:
        await self._connection.close()

    def _text_value(self, text: str) -> Any:
        """Return the text itself, or the JSON value in it if the field is not a string."""
        if self._server.arguments.schema["properties"][self._text_field].get("type") == "string":
            return text
        with suppress(ValueError):
            return json.loads(text)
        return text

    def _shown(self, observation: Mapping[str, Any]) -> str:
        if self._observation_field is not None:
            return _plain(observation.get(self._observation_field, ""))
        fields = {key: value for key, value in observation.items() if key != "metadata" and value is not None}
        if len(fields) == 1:
            return _plain(next(iter(fields.values())))
        return "\n".join(f"{key}: {_plain(value)}" for key, value in fields.items())


def _result(observation: Mapping[str, Any]) -> tuple[Content, bool]:
    """Return the content of a tool call and whether it failed. Raises `ArgumentError` for an invalid call."""
    error = observation.get("error")
    if isinstance(error, Mapping):
        message = str(error.get("message", ""))
        if error.get("error_type") in ("invalid_args", "tool_not_found"):
            raise ArgumentError(message)
        return message, True
    result = observation.get("result")
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        return as_content(result["content"]), bool(result.get("is_error"))
    return _plain(result), False


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text_field(server: Server, wanted: str | None) -> str:
    schema = server.arguments.schema
    fields, required = schema["properties"], schema.get("required", [])
    if wanted is None and len(required) == 1:
        return str(required[0])
    if wanted is None or wanted not in fields:
        close = nearest(wanted, fields) if wanted else ""
        raise UserError(f"Set `text_field` to the field of an action that gets the text: {', '.join(fields)}.{close}")
    return wanted


def _check_websockets() -> None:
    try:
        import websockets  # noqa: F401
    except ImportError as error:
        raise UserError("OpenEnv servers need websockets: pip install 'agentloop[openenv]'.") from error
