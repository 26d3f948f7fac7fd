"""The routes of the gateway. The key in the address, or the API key, identifies an episode."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentloop.gateway.answers import as_object
from agentloop.gateway.errors import HEADERS, ApiError
from agentloop.gateway.requests import ChatRequest
from agentloop.gateway.streams import streamed
from agentloop.process.offloading import off_loop
from agentloop.tools.serving.http.bodies import ClientGoneError
from agentloop.tools.serving.http.disconnects import unless_gone

if TYPE_CHECKING:
    from agentloop.gateway.session import Session
    from agentloop.rendering.base import Renderer

_logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 20
_CLIENT_GONE = 499


def application(sessions: Mapping[str, Session], renderer: Renderer, model: str) -> Starlette:
    """Return the ASGI application. `sessions` is read at every request; /models lists `model`."""

    def session_of(request: Request) -> Session:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        key = request.path_params.get("key") or (bearer if scheme.lower() == "bearer" else "")
        if key not in sessions:
            raise ApiError(
                401,
                "The key belongs to no running episode. Use the base_url or the api_key that the agent got for its "
                "episode.",
                code="invalid_api_key",
            )
        return sessions[key]

    async def chat(request: Request) -> Response:
        session = session_of(request)
        body = await _read(request)
        parsed = await off_loop(len(body), ChatRequest.parse, body)
        if parsed.stream:
            return await unless_gone(request, streamed(session, parsed, renderer))
        return JSONResponse(as_object(await unless_gone(request, session.complete_all(parsed)), renderer))

    async def models(request: Request) -> Response:
        session_of(request)
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "agentloop"}
        return JSONResponse({"object": "list", "data": [entry]})

    routes = [
        Route(f"{prefix}/v1{path}", endpoint, methods=[method])
        for prefix in ("", "/{key}")
        for path, endpoint, method in (("/chat/completions", chat, "POST"), ("/models", models, "GET"))
    ]
    handlers = {
        ApiError: _refused,
        HTTPException: _no_route,
        ClientDisconnect: _gone,
        ClientGoneError: _gone,
        Exception: _broken,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


async def _read(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ApiError(413, f"The request has more than {MAX_BODY_BYTES >> 20} MiB.", code="request_too_large")
    return b"".join(parts)


def _answer(error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, HEADERS)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = "POST /v1/chat/completions, GET /v1/models"
    return _answer(ApiError(error.status_code, f"{request.method} {request.url.path} is not served here. Use {known}."))


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_GONE)


async def _broken(request: Request, error: Exception) -> Response:
    _logger.exception("The gateway failed to answer a request.", exc_info=error)
    return _answer(ApiError(500, f"The gateway failed: {type(error).__name__}. See the log of the run."))
