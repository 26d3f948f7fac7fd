"""`Front`: checks the token of every request, gives it an id, logs it and counts it."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.routes.health import PING
from agentloop.tools.serving.routes.pages import ROUTES, START
from agentloop.tools.serving.state.daemon import Daemon
from agentloop.tools.serving.state.settings import is_loopback

access_log = logging.getLogger("agentloop.tools.serving.access")
"""One JSON line per request: its route and outcome, but never code, input, files or the token."""

_IDENTIFIER = re.compile(rb"[\w.-]{1,64}", re.ASCII)


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """Return the request's own identifier if it is short and plain, else a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode() if _IDENTIFIER.fullmatch(given) else secrets.token_hex(8)


class Front:
    """The outermost layer of the application, in plain ASGI for speed."""

    def __init__(self, app: ASGIApp, daemon: Daemon) -> None:
        self._app = app
        self._daemon = daemon
        token = daemon.settings.token
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        headers = dict(scope["headers"])
        identifier = request_id(headers)
        state: dict[str, Any] = scope.setdefault("state", {})
        state.update(request_id=identifier, outcome="", arrived=asyncio.get_running_loop().time())
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", identifier.encode())]
            await send(message)

        try:
            refusal = self._refusal(scope["path"], headers)
            if refusal is None:
                await self._app(scope, receive, answer)
            else:
                await _refuse(answer, *refusal)
        except asyncio.CancelledError:
            if status == 0:  # the time to drain is over
                await _refuse(answer, 503, outcomes.SHUTTING_DOWN)
        except Exception:
            if status == 0:
                raise
            # Starlette raises an exception again after answering and logging it; uvicorn would log its message.
        finally:
            self._record(scope, status, time.perf_counter() - start)

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        if path == PING:
            return None
        if self._token is not None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            # The case of the scheme does not matter (RFC 9110, section 11.1).
            if path in (START, ROUTES) or (scheme.lower() == b"bearer" and hmac.compare_digest(given, self._token)):
                return None
            return 401, "The token is missing or wrong: send it as `Authorization: Bearer TOKEN`."
        if b"host" in headers and not is_loopback(_host_of(headers[b"host"])):  # a name that was bound again
            return 403, "Without a token the daemon serves only this machine: use http://localhost or http://127.0.0.1."
        if b"origin" in headers:  # pages in a browser can reach loopback addresses, too
            return 403, "Browsers may use this daemon only with a token: start it with one."
        return None

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._daemon.metrics.count_request(route, status)
        if access_log.isEnabledFor(logging.INFO):
            state = scope["state"]
            line = {
                "time": round(time.time(), 3),
                "request_id": state["request_id"],
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 6),
                "outcome": state["outcome"],
            }
            access_log.info(json.dumps(line))


def _host_of(header: bytes) -> str:
    """Return the host of a Host header, without the port."""
    text = header.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


async def _refuse(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # the body is not read
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
