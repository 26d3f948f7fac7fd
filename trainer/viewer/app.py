"""The web application: the page and its data."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.trustedhost import TrustedHostMiddleware

from agentloop.errors import UserError
from agentloop.trainer.viewer.records import Records
from agentloop.trainer.viewer.stream import Decode, shown

T = TypeVar("T")

PAGE = Path(__file__).parent / "page"
_POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'"
"""Content security policy: text of a model cannot run or call home, even if the page inserted it as HTML."""


def application(records: Records, *, hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")) -> FastAPI:
    """Return an application that serves one run, read-only.

    Requests for hosts other than `hosts` are refused, so that no other web page can read the run through the user's
    browser (DNS rebinding).
    """
    app = FastAPI(title="agentloop view", docs_url=None, redoc_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    decode = _once(lambda: _decoder(records))

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["Cache-Control"] = "no-cache"
        return response

    @app.exception_handler(KeyError)
    async def missing(_: Request, error: KeyError) -> Response:
        return JSONResponse({"detail": error.args[0]}, status_code=404)

    @app.exception_handler(UserError)
    async def unreadable(_: Request, error: UserError) -> Response:
        return JSONResponse({"detail": str(error)}, status_code=422)

    @app.get("/api/run")
    def run() -> dict[str, Any]:
        root = records.folder.root.resolve()
        config = records.config()
        return {"name": root.name, "path": str(root), "config": config, "over": records.folder.model.is_dir()}

    @app.get("/api/metrics")
    def metrics(since: int = 0) -> list[dict[str, float]]:
        if since < 0:
            raise HTTPException(422, f"since is {since}, but steps count from 0")
        return records.metrics(since)

    @app.get("/api/files")
    def files() -> list[dict[str, Any]]:
        return records.files()

    @app.get("/api/files/{name}")
    def summaries(name: str) -> list[dict[str, Any]]:
        return records.summaries(name)

    @app.get("/api/files/{name}/{index}")
    def trajectory(name: str, index: int) -> dict[str, Any]:
        return shown(records.trajectory(name, index), decode()) | {"file_kind": records.kind(name)}

    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return app


def _once(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls `make` at its first call only. Requests run in threads: the others wait for it."""
    lock, made = Lock(), cache(make)

    def get() -> T:
        with lock:
            return made()

    return get


def _decoder(records: Records) -> Decode | None:
    """Return the decoder of the run's model; None if its tokenizer is gone."""
    from agentloop.rendering import renderer_for

    for folder in (records.folder.model, Path(str(records.config().get("model", "")))):
        if (folder / "tokenizer_config.json").is_file():
            return renderer_for(folder).decode
    return None
