"""/v1/ping, /v1/health and /metrics: the state and load of the daemon."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.state.daemon import Daemon

PING = "/v1/ping"

router = APIRouter(tags=["health"])


@router.get(PING)
async def ping() -> str:
    """Answer "pong", even without the token."""
    return "pong"


@router.get("/v1/health")
async def health(request: Request) -> Response:
    """Describe this daemon and its load."""
    daemon = Daemon.of(request)
    load = daemon.sandbox.load()
    return outcomes.answer(
        {
            "status": "draining" if daemon.draining else "ok",
            "draining": daemon.draining,
            "version": version("agentloop"),
            "level": daemon.sandbox.level,
            "slots": load.slots,
            "busy": load.busy,
            "waiting": load.waiting,
            "sessions": load.sessions,
            "max_sessions": daemon.settings.max_sessions,
            "preload": list(daemon.settings.preload),
            "packages": list(daemon.settings.packages),
            "tools": list(daemon.toolbox.toolset.tools),
        }
    )


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return metrics for Prometheus."""
    return Response(Daemon.of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)
