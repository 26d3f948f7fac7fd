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
        for message in _parsed(b"".join([chunk async for chunk in _chunks(response)])):
            yield message
        return
    data: list[bytes] = []
    async for line in _lines(response):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:  # an empty line ends an event
            for message in _parsed(b"\n".join(data)):
                yield message
            data = []


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of an event stream. `aiter_lines` also splits at U+2028 and others, which JSON may contain."""
    line = bytearray()
    async for chunk in _chunks(response):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield bytes(line + end).removesuffix(b"\r")
            line.clear()
        line += rest


async def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the content. Raises `McpError` if it is too large for memory."""
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > _MAX_BYTES:
            raise McpError(f"the answer is larger than {_MAX_BYTES >> 20} MiB")
        yield chunk


def _parsed(text: bytes) -> list[Message]:
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
