"""MCP over "streamable HTTP": each message is a POST, and its answer is JSON or an event stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping

import httpx

from agentloop.tools.mcp.protocol import McpError, Message

_ACCEPT = "application/json, text/event-stream"
_MAX_BYTES = 64 << 20


class HttpTransport:
    """Transport to a server that is already running."""

    def __init__(self, url: str, headers: Mapping[str, str], seconds: float) -> None:
        self._url = url
        self._headers = {**headers, "Accept": _ACCEPT}
        self._seconds = seconds
        self._client: httpx.AsyncClient | None = None
        self.is_lost = False

    async def open(self) -> None:
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(self._seconds, pool=None), follow_redirects=True)

    async def request(self, message: Message, on_request: Callable[[Message], Message | None]) -> Message:
        assert self._client is not None
        try:
            async with self._client.stream("POST", self._url, json=message, headers=self._headers) as response:
                self._check(response)
                if session := response.headers.get("mcp-session-id"):
                    self._headers["Mcp-Session-Id"] = session
                async for each in _messages(response):
                    if each.get("id") == message["id"] and "method" not in each:
                        return each
                    if (answer := on_request(each)) is not None:
                        await self.notify(answer)
        except httpx.HTTPError as error:
            raise McpError(f"{self._url} cannot be reached: {type(error).__name__} {error}".strip()) from error
        raise McpError(f"{self._url} closed the connection without an answer")

    async def notify(self, message: Message) -> None:
        assert self._client is not None
        try:
            self._check(await self._client.post(self._url, json=message, headers=self._headers))
        except httpx.HTTPError as error:
            raise McpError(f"{self._url} cannot be reached: {type(error).__name__} {error}".strip()) from error

    def negotiated(self, version: str) -> None:
        self._headers["MCP-Protocol-Version"] = version

    def _check(self, response: httpx.Response) -> None:
        if response.status_code == 404 and "Mcp-Session-Id" in self._headers:
            self.is_lost = True
            raise McpError(f"{self._url} has ended the session")
        if response.status_code in (401, 403):
            raise McpError(f"{self._url} refuses the credentials (HTTP {response.status_code}): set headers")
        if response.status_code >= 400:
            raise McpError(f"{self._url} answered with HTTP {response.status_code}")

    async def close(self) -> None:
        if self._client is None:
            return
        client, self._client = self._client, None
        try:
            if "Mcp-Session-Id" in self._headers and not self.is_lost:
                await client.delete(self._url, headers=self._headers)
        except httpx.HTTPError:
            return  # the server is gone, and the session with it
        finally:
            await client.aclose()


async def _messages(response: httpx.Response) -> AsyncIterator[Message]:
    """Yield the messages of an answer. Raises `McpError` if it contains anything else."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        content = b""
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > _MAX_BYTES:
                raise McpError(f"the answer is larger than {_MAX_BYTES >> 20} MiB")
        for message in _parsed(content):
            yield message
        return
    data: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:  # an empty line ends an event
            for message in _parsed("\n".join(data)):
                yield message
            data = []


def _parsed(text: str | bytes) -> list[Message]:
    if not text:
        return []
    try:
        value = json.loads(text)
    except ValueError as error:
        raise McpError("the answer of the server is not JSON") from error
    messages = value if isinstance(value, list) else [value]
    if not all(isinstance(message, dict) for message in messages):
        raise McpError("the answer of the server is not JSON-RPC")
    return messages
