"""The routes of the gateway. The key in the address, or the API key, identifies an episode."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentloop.gateway.dialects.anthropic import Anthropic, models
from agentloop.gateway.dialects.base import Dialect
from agentloop.gateway.dialects.chat import Chat
from agentloop.gateway.dialects.responses import Responses
from agentloop.gateway.streams import streamed
from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.requests import ModelRequest
from agentloop.process.offloading import off_loop
from agentloop.tools.serving.http.bodies import ClientGoneError
from agentloop.tools.serving.http.disconnects import unless_gone

if TYPE_CHECKING:
    from agentloop.gateway.session import Session
    from agentloop.rendering.base import Renderer

_logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 20
_CLIENT_GONE = 499
_CHEAPER = 8
"""Factor by which reading a body without images is cheaper than tokenizing its text."""
_RETRIES = "x-stainless-retry-count"
"""Header of the official clients: how often they have already sent this request without getting an answer."""
_DIALECTS: dict[str, Dialect] = {"/chat/completions": Chat(), "/messages": Anthropic(), "/responses": Responses()}


def application(sessions: Mapping[str, Session], renderer: Renderer, model: str) -> Starlette:
    """Return the ASGI application. `sessions` is read at every request; /models lists `model`."""

    def session_of(request: Request) -> Session:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        bearer = bearer if scheme.lower() == "bearer" else ""
        key = request.path_params.get("key") or request.headers.get("x-api-key") or bearer
        if key not in sessions:
            raise ApiError(
                401,
                "The key belongs to no running episode. Use the base_url or the api_key that the agent got for its "
                "episode.",
                code="invalid_api_key",
            )
        return sessions[key]

    async def read(request: Request, session: Session) -> ModelRequest:
        body = await _read(request)
        size = len(body) if b"base64" in body else len(body) // _CHEAPER
        found = await off_loop(size, _dialect_of(request).read, body, session.memory)
        is_retry = request.headers.get(_RETRIES, "0") not in ("", "0")
        return replace(found, sent=blake2b(body, digest_size=16).digest(), is_retry=is_retry)

    async def turn(request: Request) -> Response:
        session, dialect = session_of(request), _dialect_of(request)
        found = await read(request, session)
        if found.stream:
            return await unless_gone(request, streamed(session, found, dialect, renderer))
        return JSONResponse(dialect.whole(await unless_gone(request, session.complete_all(found)), renderer))

    async def count_tokens(request: Request) -> Response:
        session = session_of(request)
        found = await read(request, session)
        return JSONResponse({"input_tokens": await session.count_tokens(found)})

    async def list_models(request: Request) -> Response:
        session_of(request)
        return JSONResponse(models(model))

    routes = [
        Route(f"{prefix}/v1{path}", endpoint, methods=[method])
        for prefix in ("/{key}", "")
        for path, endpoint, method in (
            *((path, turn, "POST") for path in _DIALECTS),
            ("/messages/count_tokens", count_tokens, "POST"),
            ("/models", list_models, "GET"),
        )
    ]
    handlers = {
        ApiError: _refused,
        HTTPException: _no_route,
        ClientDisconnect: _gone,
        ClientGoneError: _gone,
        Exception: _broken,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def _dialect_of(request: Request) -> Dialect:
    """Return the dialect of an address; for unknown addresses, the client's."""
    path = request.scope["path"].removesuffix("/count_tokens")
    for ending, dialect in _DIALECTS.items():
        if path.endswith(f"/v1{ending}"):
            return dialect
    return _DIALECTS["/messages" if "anthropic-version" in request.headers else "/chat/completions"]


async def _read(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ApiError(413, f"The request has more than {MAX_BODY_BYTES >> 20} MiB.", code="request_too_large")
    return b"".join(parts)


def _answer(request: Request, error: ApiError) -> Response:
    return JSONResponse(_dialect_of(request).error(error), error.status, error.headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(request, error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = ", ".join([*(f"POST /v1{path}" for path in _DIALECTS), "POST /v1/messages/count_tokens", "GET /v1/models"])
    problem = f"{request.method} {request.url.path} is not served here. Use {known}."
    return _answer(request, ApiError(error.status_code, problem))


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_GONE)


async def _broken(request: Request, error: Exception) -> Response:
    _logger.exception("The gateway failed to answer a request.", exc_info=error)
    return _answer(request, ApiError(500, f"The gateway failed: {type(error).__name__}. See the log of the run."))
