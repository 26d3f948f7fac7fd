"""`Connections`: HTTP to one daemon, with errors that say whether a request may have had its effect.

Each connection is a separate httpx transport, kept on a stack. The connection pool of httpx walks through all its
connections for every request, which is slow with hundreds of requests in flight:
https://github.com/encode/httpcore/pull/1035
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import sys
import time
from collections import deque
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import httpx

from agentloop.errors import SandboxError

CONNECT_SECONDS = 5.0
_KEEPALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
if sys.platform == "linux":  # notice within a minute if the daemon's machine dies, even while code runs
    _KEEPALIVE += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    ]


class UnavailableError(SandboxError):
    """The daemon cannot take requests now."""


class NotSentError(UnavailableError):
    """No connection could be made: the daemon has not seen the request."""


class AnswerLostError(SandboxError):
    """The connection broke, or a proxy gave up, before the answer came: the request may have had its effect."""


class OverdueError(SandboxError):
    """No answer came within the time limit of the request."""


class GoneError(SandboxError):
    """The daemon does not know the path or the object that it names."""


@dataclass(slots=True, frozen=True)
class Reply:
    """Status and body of an HTTP answer."""

    status: int
    body: bytes


class Connections:
    """The connections to one daemon, one for each concurrent request. Those of an ended event loop are dropped.

    Proxies of the environment are ignored, because daemons are not on the internet.
    """

    idle_seconds = 4.0
    """Seconds after which idle connections are closed. uvicorn closes them after 5 s, and must not be first."""

    def __init__(self, url: httpx.URL, token: str | None) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        if not token and url.userinfo:
            self._headers = {"authorization": f"Basic {base64.b64encode(unquote_to_bytes(url.userinfo)).decode()}"}
        self._tls: ssl.SSLContext | bool = ssl.create_default_context() if url.scheme == "https" else False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: deque[tuple[httpx.AsyncHTTPTransport, float]] = deque()

    async def request(self, method: str, path: str, body: bytes | None = None, *, seconds: float) -> Reply:
        """Send a request and read the whole answer within `seconds`, on a new connection if none is idle.

        Raises `NotSentError`, `AnswerLostError` and `OverdueError`. If cancelled, it closes its connection, which ends
        the execution in the daemon.
        """
        headers = self._headers if body is None else {**self._headers, "content-type": "application/json"}
        timeouts = {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}
        url = self._url.copy_with(raw_path=self._url.raw_path.rstrip(b"/") + path.encode())
        request = httpx.Request(method, url, content=body, headers=headers, extensions={"timeout": timeouts})
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._loop, self._idle = loop, deque()
        transport = self._idle.pop()[0] if self._idle else self._transport()
        try:
            reply = await _exchange(transport, request, seconds)
        except BaseException:
            await transport.aclose()
            raise
        self._idle.append((transport, time.monotonic()))
        await self._close_idle(self.idle_seconds)
        return reply

    async def close(self) -> None:
        """Close the idle connections."""
        if self._loop is asyncio.get_running_loop():
            await self._close_idle(0.0)

    async def _close_idle(self, seconds: float) -> None:
        """Close connections that were idle for this long. httpx itself replaces one only when it is used again."""
        while self._idle and self._idle[0][1] <= time.monotonic() - seconds:
            transport, _ = self._idle.popleft()
            await transport.aclose()

    def _transport(self) -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=self.idle_seconds)
        return httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, socket_options=_KEEPALIVE)


async def _exchange(transport: httpx.AsyncHTTPTransport, request: httpx.Request, seconds: float) -> Reply:
    try:
        async with asyncio.timeout(seconds):
            response = await transport.handle_async_request(request)
            return Reply(response.status_code, await response.aread())
    except TimeoutError as error:
        raise OverdueError(f"No answer came within {seconds:.3g} s.") from error
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise NotSentError(f"Cannot connect: {_reason(error)}.") from error
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise AnswerLostError(f"The connection broke before the answer: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
