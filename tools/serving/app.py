"""The ASGI application: the routes, and the answers to errors."""

from __future__ import annotations

import logging
import traceback
from importlib.metadata import version
from inspect import signature

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route, request_response
from starlette.types import ASGIApp

from agentloop.boxes.interface.box import BoxLostError, ProgramEndedError
from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface.sandbox import SandboxBusyError
from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.http.bodies import ClientGoneError, meant
from agentloop.tools.serving.routes import (
    box_processes,
    boxes,
    fusion,
    health,
    notebooks,
    pages,
    retrieval,
    sessions,
    tool_calls,
)
from agentloop.tools.serving.routes.front import Front
from agentloop.tools.serving.state.daemon import Daemon

_logger = logging.getLogger(__name__)

_CLIENT_GONE = 499
"""Status code of nginx for a disconnected client; it is seen only in the log."""


def application(daemon: Daemon) -> ASGIApp:
    """Return the ASGI application of a running daemon.

    /openapi.json describes it. /docs is agentloop's own page, because FastAPI's loads scripts from other sites.
    """
    app = FastAPI(
        title="agentloop tools",
        description="Untrusted code in sandboxes, on SandboxFusion's protocol; sessions; tools.",
        version=version("agentloop"),
        docs_url=None,
        redoc_url=None,
    )
    app.state.daemon = daemon
    for part in (fusion, notebooks, sessions, boxes, box_processes, tool_calls, retrieval, health, pages):
        app.include_router(part.router)
    _shorten(app)
    app.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]
    app.add_exception_handler(UserError, _refused)
    app.add_exception_handler(SandboxBusyError, _busy)
    app.add_exception_handler(BoxLostError, _box_lost)
    app.add_exception_handler(ProgramEndedError, _program_ended)
    app.add_exception_handler(SandboxError, _failed)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(Exception, _broken)
    return Front(app, daemon)


def _shorten(app: FastAPI) -> None:
    """Bypass FastAPI's costly parsing for handlers that take only the request."""
    for route in app.router.routes:
        if isinstance(route, APIRoute) and [*signature(route.endpoint).parameters] == ["request"]:
            route.app = request_response(route.endpoint)


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Answer with the message of an error; for an unknown path or method, with what to send instead."""
    detail, headers = error.detail, error.headers
    path, routes = request.url.path, [route for route in request.app.routes if isinstance(route, Route)]
    if error.status_code == 404 and "route" not in request.scope:
        paths = [route.path for route in routes]
        detail = f"There is no route {path:.100}.{meant(path, paths)} GET /docs lists all routes."
    elif error.status_code == 405:
        found = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
        methods = sorted(set[str]().union(*found))
        detail = f"{path:.100} does not take {request.method}: use {' or '.join(methods)}."
        headers = {"allow": ", ".join(methods)}
    return JSONResponse({"detail": detail}, error.status_code, headers)


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": [{"type": "value_error", "loc": ["body"], "msg": str(error)}]}, 422)


async def _busy(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 504)


async def _box_lost(request: Request, error: Exception) -> Response:
    outcomes.note(request, "box_lost")
    return JSONResponse({"detail": str(error)}, 410)


async def _program_ended(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 409)


async def _failed(request: Request, error: Exception) -> Response:
    if Daemon.of(request).draining:  # a second signal has closed the sandbox
        return JSONResponse({"detail": outcomes.SHUTTING_DOWN}, 503)
    outcomes.note(request, "sandbox_error")
    return JSONResponse({"detail": str(error)}, 500)


async def _client_gone(request: Request, error: Exception) -> Response:
    outcomes.note(request, "client_gone")
    return Response(status_code=_CLIENT_GONE)


async def _broken(request: Request, error: Exception) -> Response:
    """Answer a bug in the daemon. The log gets the stack, but not the message, which may contain request data."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    identifier = outcomes.request_id(request)
    _logger.error("request %s: %s\n%s", identifier, type(error).__name__, frames)
    return JSONResponse({"detail": f"The daemon failed; its log has the reason under request {identifier}."}, 500)
