"""/ and /docs: pages for a browser. They load nothing, so they work without a network."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import groupby
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.state.daemon import Daemon

START, ROUTES = "/", "/docs"
_LINKS = {
    "docs": (ROUTES, "all routes, with their fields"),
    "health": ("/v1/health", "state and load"),
    "metrics": ("/metrics", "metrics for Prometheus"),
}
_PAGES = Environment(
    loader=PackageLoader("agentloop.tools.serving", "pages"),
    autoescape=True,
    trim_blocks=True,
    undefined=StrictUndefined,
)
_LOADS_NOTHING = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}

router = APIRouter(tags=["pages"])


@router.get(START)
async def start(request: Request) -> Response:
    """Describe the daemon: a page for browsers, JSON for programs. Without the token it shows no settings."""
    about = _about(request)
    if "text/html" not in request.headers.get("accept", ""):
        return outcomes.answer(about)
    return _page("start.html", about=about, texts={name: text for name, (_, text) in _LINKS.items()})


@router.get(ROUTES)
async def routes(request: Request) -> Response:
    """List the routes on a page for browsers. It needs no token."""
    found = sorted(_routes(request.app.openapi()), key=lambda route: route["tag"])
    groups = [(tag, list(members)) for tag, members in groupby(found, lambda route: route["tag"])]
    return _page("routes.html", groups=groups)


def _about(request: Request) -> dict[str, Any]:
    """Return public information. Only a daemon without a token shows its version and level."""
    daemon = Daemon.of(request)
    is_open = daemon.settings.token is None
    address = f"http://{request.headers.get('host', f'{daemon.settings.host}:{daemon.settings.port}')}"
    token = "" if is_open else ' -H "authorization: Bearer $AGENTLOOP_TOKEN"'
    return {
        "name": "agentloop tools",
        **({"version": version("agentloop"), "isolation": daemon.sandbox.level} if is_open else {}),
        "token": "none" if is_open else "required",
        "links": {name: path for name, (path, _) in _LINKS.items()},
        "example": f'curl {shlex.quote(f"{address}/run_code")}{token} -d \'{{"code": "print(6 * 7)"}}\'',
    }


def _routes(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the routes of an OpenAPI document."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {"content": {"application/json": {"schema": {}}}})
            yield {
                "tag": operation["tags"][0],
                "method": method.upper(),
                "path": path,
                "text": operation["description"],
                "fields": [*_fields(body["content"]["application/json"]["schema"])],
            }


def _fields(schema: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for name, field in schema.get("properties", {}).items():
        needed = "required" if name in schema.get("required", ()) else ""
        yield {
            "name": name,
            "type": _type(field),
            "default": needed or (json.dumps(field["default"]) if field.get("default") is not None else ""),
            "text": field.get("description", ""),
        }


def _type(field: Mapping[str, Any]) -> str:
    """Return the type of a field in words."""
    kinds = field.get("anyOf") or [{"type": each} for each in _listed(field["type"])]
    return " or ".join(kind["type"] for kind in kinds if kind["type"] != "null")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _page(name: str, **values: Any) -> Response:
    return HTMLResponse(_PAGES.get_template(name).render(values), headers=_LOADS_NOTHING)
