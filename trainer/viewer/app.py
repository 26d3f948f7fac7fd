"""The web application of `agentloop view`: the page and its data."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.trustedhost import TrustedHostMiddleware

from agentloop.errors import UserError
from agentloop.registry.extras import naming_extras
from agentloop.trainer.viewer.records import Records
from agentloop.trainer.viewer.runs import Runs
from agentloop.trainer.viewer.stream import Decode, shown

T = TypeVar("T")

PAGE = Path(__file__).parent / "page"
_POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'"
"""Content security policy: text of a model cannot run code or send requests, even if it were inserted as HTML."""


def application(runs: Runs, *, hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")) -> FastAPI:
    """Return an application that serves runs by name, read-only.

    Requests for hosts other than `hosts` are rejected, so that other web pages cannot read the runs through the user's
    browser (DNS rebinding).
    """
    app = FastAPI(title="agentloop view", docs_url=None, redoc_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    decoders: dict[str, Callable[[], Decode | None]] = {}

    def records_of(run: str) -> Records:
        if run not in runs:
            raise KeyError(f"{run!r} is not one of the runs shown: {', '.join(runs)}")
        return runs[run]

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

    @app.get("/api/runs")
    def states() -> list[dict[str, Any]]:
        runs.refresh()
        return [{"name": name} | records.state() for name, records in runs.items()]

    @app.get("/api/config")
    def config(run: str) -> dict[str, Any]:
        return records_of(run).config()

    @app.get("/api/metrics")
    def metrics(run: str, since: Annotated[int, Query(ge=0)] = 0) -> list[dict[str, float | None]]:
        return records_of(run).metrics(since)

    @app.get("/api/episodes")
    def episodes(run: str, file: str) -> list[dict[str, Any]]:
        return records_of(run).episodes(file)

    @app.get("/api/episode")
    def episode(run: str, file: str, episode: int) -> dict[str, Any]:
        records = records_of(run)
        decode = decoders.setdefault(run, _once(partial(_decoder, records)))
        return shown(records.episode(file, episode), decode())

    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return app


def _once(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls `make` only once; concurrent calls wait for the first."""
    lock, made = Lock(), cache(make)

    def get() -> T:
        with lock:
            return made()

    return get


def _decoder(records: Records) -> Decode | None:
    """Return the decoder of the run's model; None if its tokenizer is missing.

    Raises `UserError` if the package that reads tokenizers is missing.
    """
    from agentloop.rendering import renderer_for

    for folder in (records.folder.model, Path(str(records.config().get("model", "")))):
        if (folder / "tokenizer_config.json").is_file():
            with naming_extras():
                return renderer_for(folder).decode
    return None
