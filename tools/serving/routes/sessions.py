"""/v1/sessions: stateful Python sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import Field

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.client.wire import CellBody, FilesBody
from agentloop.sandboxes.interface.sandbox import CellResult, SandboxBusyError, SessionSettings
from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.http.bodies import (
    LARGE,
    Body,
    FetchBytes,
    Files,
    MemoryOrDefault,
    OutputBytes,
    Paths,
    Seconds,
    documented,
    refuse,
)
from agentloop.tools.serving.http.disconnects import unless_gone
from agentloop.tools.serving.state.daemon import Daemon
from agentloop.tools.serving.state.leases import Lease

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


class Open(Body):
    """The body that opens a session."""

    memory_mb: MemoryOrDefault = -1
    files: Files = Field(default_factory=dict)
    idle_seconds: Annotated[float, Field(gt=0, le=86400)] = 1800.0
    """Seconds without a cell after which the session is closed."""
    output_bytes: OutputBytes = 1 << 20
    display_bytes: OutputBytes = 8 << 20


class Run(Body):
    """The body that runs a cell."""

    code: str
    max_seconds: Seconds = 10.0


class WriteFiles(Body):
    """The body that writes files."""

    files: Files


class ReadFiles(Body):
    """The body that reads files."""

    paths: Paths
    limit: FetchBytes = 64 << 20


@router.post("", openapi_extra=documented(Open))
async def open_session(request: Request) -> Response:
    """Open a session and answer with its id. Answers 429 if the maximum number is open."""
    daemon = Daemon.of(request)
    body = await daemon.reader.parse(request, Open)
    settings = SessionSettings(
        memory_mb=daemon.settings.memory_mb if body.memory_mb == -1 else body.memory_mb,
        files=body.files,
        idle_seconds=body.idle_seconds,
        output_bytes=body.output_bytes,
        display_bytes=body.display_bytes,
    )
    try:
        lease = await daemon.sessions.open(lambda: daemon.sandbox.session(settings), body.idle_seconds)
    except SandboxBusyError as error:
        raise HTTPException(429, f"{error} Close some, or start the daemon with a larger --max-sessions.") from error
    return outcomes.answer({"id": lease.id, "idle_seconds": lease.idle_limit})


@router.get("")
async def list_sessions(request: Request) -> Response:
    """List the open sessions, and the seconds that each was idle."""
    return outcomes.answer({"sessions": [_about(lease) for lease in Daemon.of(request).sessions]})


@router.get("/{id}")
async def show_session(request: Request, id: str) -> Response:
    """Describe one session. Answers 404 if it has ended."""
    return outcomes.answer(_about(Daemon.of(request).sessions.find(id)))


@router.post("/{id}/run", response_model=CellBody, openapi_extra=documented(Run))
async def run_cell(request: Request, id: str) -> Response:
    """Run a cell. It is interrupted after `max_seconds` and when the client disconnects; the session continues."""
    daemon = Daemon.of(request)
    with daemon.sessions.use(id) as session:
        body = await daemon.reader.parse(request, Run)
        try:
            result = await unless_gone(request, session.run(body.code, max_seconds=body.max_seconds))
            daemon.check_end(result)
        except SandboxError:
            await daemon.sessions.forget(id)
            raise
    outcome = outcomes.of_cell(result)
    outcomes.note(request, outcome)
    daemon.metrics.count_execution(outcome)
    if result.session_ended:
        await daemon.sessions.forget(id)
    return outcomes.answer(_cell(result))


@router.post("/{id}/interrupt")
async def interrupt(request: Request, id: str) -> Response:
    """Interrupt the running cell, if any, as by Ctrl-C."""
    with Daemon.of(request).sessions.use(id) as session:
        await session.interrupt()
    return outcomes.answer({})


@router.put("/{id}/files", openapi_extra=documented(WriteFiles))
@router.post("/{id}/files", openapi_extra=documented(WriteFiles), include_in_schema=False)
async def write_files(request: Request, id: str) -> Response:
    """Write files: path -> base64."""
    daemon = Daemon.of(request)
    with daemon.sessions.use(id) as session:
        body = await daemon.reader.parse(request, WriteFiles)
        try:
            await session.write_files(body.files)
        except UserError as error:
            refuse("files", str(error))
    return outcomes.answer({})


@router.post("/{id}/files/read", response_model=FilesBody, openapi_extra=documented(ReadFiles))
async def read_files(request: Request, id: str) -> Response:
    """Read the files that exist and fit into `limit` bytes together."""
    daemon = Daemon.of(request)
    with daemon.sessions.use(id) as session:
        body = await daemon.reader.parse(request, ReadFiles)
        files = await session.read_files(body.paths, limit=body.limit)
    if sum(map(len, files.values())) > LARGE:
        return await asyncio.to_thread(_files, files)
    return _files(files)


@router.delete("/{id}")
async def close_session(request: Request, id: str) -> Response:
    """End a session, with its processes and files."""
    await Daemon.of(request).sessions.end(id)
    return outcomes.answer({})


def _about(lease: Lease[Any]) -> dict[str, Any]:
    return {
        "id": lease.id,
        "idle_seconds": lease.idle_seconds,
        "idle_limit": lease.idle_limit,
        "age_seconds": lease.age_seconds,
        "in_use": lease.users > 0,
    }


def _files(files: Mapping[str, bytes]) -> Response:
    return outcomes.answer({"files": {path: outcomes.to_base64(content) for path, content in files.items()}})


def _cell(result: CellResult) -> dict[str, Any]:
    error = result.error
    return {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "displays": [outcomes.display(shown) for shown in result.displays],
        "error": {"name": error.name, "value": error.value, "traceback": list(error.traceback)} if error else None,
        "seconds": result.seconds,
        "timed_out": result.timed_out,
        "oom": result.oom,
        "output_truncated": result.output_truncated,
        "session_ended": result.session_ended,
    }
