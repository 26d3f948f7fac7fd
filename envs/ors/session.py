"""`Session`: one session with a server of the Open Reward Standard (ORS 0.1), over HTTP and server-sent events.

    POST /create_session                                 -> events: task_id (the id of the session), end
    POST /create {env_name, task_spec, secrets}          -> {sid}; the environment is set up in the background
    GET  /{env}/prompt, /{env}/task_tools                -> blocks; {tools}
    POST /{env}/call {name, input}                       -> events: task_id, chunk..., end, or error
    POST /delete

This module does not use the package ors-sdk, because only the routes are standardized, not its Python API.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from agentloop.envs.servers import answering, client_of, json_of, refused
from agentloop.errors import EnvError

_PING_SECONDS = 240.0
"""Seconds between two signs of life. A server ends sessions that are silent for 15 minutes."""


@dataclass(slots=True, frozen=True)
class Output:
    """Result of a tool."""

    blocks: list[dict[str, Any]]
    reward: float | None
    """Reward of the call; None means that the call is not scored."""
    finished: bool


class Refused(Exception):
    """The server refused a call of the model. The session continues."""


class Session:
    """Session for which the server creates an environment. All failures raise `EnvError`."""

    def __init__(self, url: str, environment: str, *, seconds: float) -> None:
        """Prepare a session. An answer may take `seconds`."""
        self._url = url
        self._path = f"/{quote(environment, safe='')}"
        self._environment = environment
        self._seconds = seconds
        self._client = client_of(url, seconds=seconds)
        self._pinging: asyncio.Task[None] | None = None

    async def create(self, task: Mapping[str, Any], secrets: Mapping[str, str] | None = None) -> None:
        """Create the environment of a task."""
        events = await self._events("/create_session", {})
        sid = next((data for event, data in events if event == "task_id"), "")
        if not sid:
            raise EnvError(f"the server {self._url} did not begin a session: it sent no task_id")
        self._client.headers["X-Session-ID"] = sid
        body: dict[str, Any] = {"env_name": self._environment, "task_spec": dict(task)}
        json_of(await self._request("POST", "/create", body | ({"secrets": dict(secrets)} if secrets else {})))
        self._pinging = asyncio.create_task(self._ping())

    async def prompt(self) -> list[dict[str, Any]]:
        """Return the blocks of the prompt."""
        return _blocks(json_of(await self._request("GET", f"{self._path}/prompt")))

    async def tools(self) -> list[dict[str, Any]]:
        """Return the tools of the task: name, description and input_schema."""
        found = json_of(await self._request("GET", f"{self._path}/task_tools"))
        tools = found.get("tools") if isinstance(found, dict) else None
        if not isinstance(tools, list) or not all(isinstance(tool, dict) and "name" in tool for tool in tools):
            raise EnvError(f"the server {self._url} lists its tools as {found!r:.200}")
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Output:
        """Call a tool. Raises `Refused` if the server refuses the call, and `EnvError` if the environment fails."""
        events = await self._events(f"{self._path}/call", {"name": name, "input": dict(arguments)})
        if said := [data for event, data in events if event == "error"]:
            raise EnvError(f"the tool {name} of {self._environment} failed: {said[0]}")
        if not events or events[-1][0] != "end":
            raise EnvError(f"the server {self._url} did not finish its answer to the call of {name}")
        return read_output("".join(data for event, data in events if event in ("chunk", "end")))

    async def close(self) -> None:
        """Delete the environment and the session."""
        try:
            if self._pinging is not None:
                self._pinging.cancel()
                with suppress(
                    EnvError
                ):  # a server that has ended has nothing to delete, and others end the session in time
                    await self._request("POST", "/delete")
        finally:
            await self._client.aclose()

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        with answering(self._url, path):
            async with asyncio.timeout(self._seconds):  # a stream may send events without ever ending
                return await self._client.request(method, path, json=body)

    async def _events(self, path: str, body: Mapping[str, Any]) -> list[tuple[str, str]]:
        response = await self._request("POST", path, body)
        if not response.is_success:
            raise refused(response)
        return list(read_events(response.text))

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(_PING_SECONDS)
            with suppress(EnvError):  # the next call reports the failure
                await self._request("POST", "/ping")


def read_events(text: str) -> Iterator[tuple[str, str]]:
    """Yield (event, data) of a stream of server-sent events until its end."""
    event, data = "message", list[str]()
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data or event != "message":
                yield event, "\n".join(data)
            event, data = "message", []
        elif name == "event":
            event = value
        elif name == "data":
            data.append(value)


def read_output(text: str) -> Output:
    """Parse the result of a call. Raises `Refused` and `EnvError`."""
    try:
        result = json.loads(text)
        if result["ok"] is False:
            raise Refused(str(result["error"]))
        output = result["output"]
        reward, finished = output.get("reward"), output.get("finished", False)
        blocks = _blocks(output["blocks"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvError(f"the server answered a call with {text[:200]!r}, which is not a result") from error
    if reward is not None and (not isinstance(reward, bool | int | float) or not math.isfinite(reward)):
        raise EnvError(f"the server gave the reward {reward!r}, which is not a finite number")
    return Output(blocks, None if reward is None else float(reward), finished is True)


def _blocks(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(block, dict) for block in found):
        raise EnvError(f"the server gave the blocks {found!r:.200}, which are not a list of objects")
    return found
